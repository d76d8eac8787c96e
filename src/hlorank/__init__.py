"""hlorank: learned cost models that rank the compiler configurations of XLA programs."""

__version__ = "0.1.0"
