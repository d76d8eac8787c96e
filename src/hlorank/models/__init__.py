"""Cost models and baselines: encoder, layers, pooling, heads, and scoring in bounded memory."""
