"""Measuring JAX programs: the programs, their configurations, and the runtimes on the XLA backend at hand."""
