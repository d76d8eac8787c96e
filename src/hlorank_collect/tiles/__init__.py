"""Tiles of XLA's kernels: as C loop nests, checked against XLA and timed on a CPU; of a GPU, in the folder triton."""
