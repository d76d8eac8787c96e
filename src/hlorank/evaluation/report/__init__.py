"""Reports on trained models: one HTML file that opens without a network."""
