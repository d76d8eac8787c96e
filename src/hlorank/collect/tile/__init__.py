"""Tiles of XLA's own kernels: written as C loop nests, checked against XLA, and timed on this machine's CPU."""
