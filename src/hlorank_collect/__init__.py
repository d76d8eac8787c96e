"""Measurement of JAX programs on the user's own XLA backend: a zoo of programs, layouts, tiles and autotuning."""
