"""Search for a faster layout configuration of one program: ranking, compilation, measurement and adaptation."""
