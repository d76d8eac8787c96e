"""Scoring in bounded memory, protocols, submissions."""
