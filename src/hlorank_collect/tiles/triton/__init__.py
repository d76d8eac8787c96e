"""Triton GEMM configurations: the tiles that XLA's GPU compiler has for matrix products. Never run on a GPU so far."""
