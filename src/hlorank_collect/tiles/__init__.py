"""Triton GEMM configurations: the tiles of XLA's GPU compiler for matrix products."""
