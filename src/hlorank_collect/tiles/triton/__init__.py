"""Triton GEMM configurations: the tiles of XLA's GPU compiler for matrix products. Not yet tested on a GPU."""
