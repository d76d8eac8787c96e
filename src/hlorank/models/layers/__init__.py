"""Layers over states with a configuration axis, one operator in each module."""
