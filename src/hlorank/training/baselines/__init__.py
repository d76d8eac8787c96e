"""Trainings of the baselines: how each is fitted, and what all of them share."""
