"""Trained models at work: ranking the configurations of graphs that are in no store."""
