"""Rankers that see no edges and are no neural networks: arrays that score configurations."""
