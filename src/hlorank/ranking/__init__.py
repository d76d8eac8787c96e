"""Graphs or programs in, rankings out."""
