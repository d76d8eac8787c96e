"""Cuts graphs into segments of bounded size."""
