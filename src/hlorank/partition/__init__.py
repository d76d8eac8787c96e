"""Partition of graphs into segments of bounded size."""
