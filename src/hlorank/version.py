"""The version of hlorank; a leaf, which every module may import."""

__version__ = "0.1.0"
