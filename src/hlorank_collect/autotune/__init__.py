"""Search for a faster layout configuration of one program: rank, compile the most promising, measure, adapt, decide."""
