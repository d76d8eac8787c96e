"""Rankers without message passing or neural networks: arrays that score pooled features of configurations."""
