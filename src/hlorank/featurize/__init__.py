"""Conversion of measured graphs to model inputs: features, configuration codes, labels."""
