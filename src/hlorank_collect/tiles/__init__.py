"""Tiles of XLA's kernels: C loop nests, checked against XLA and timed on a CPU; the package `triton` is for a GPU."""
