"""The version of hlorank; a leaf, which every module may import."""

__version__ = "0.2.0"
