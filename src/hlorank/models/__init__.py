"""Cost models: encoders, layers, pooling, heads."""
