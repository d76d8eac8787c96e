"""Multiruns of trainings: their parent run, resuming, tables, and searches."""
