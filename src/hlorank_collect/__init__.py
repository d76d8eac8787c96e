"""Measurement of programs on the XLA backend of the user: layouts, tiles and autotuning."""
