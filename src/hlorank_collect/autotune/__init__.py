"""Finding a faster configuration of one program: rank, compile the most promising, measure, adapt, decide."""
