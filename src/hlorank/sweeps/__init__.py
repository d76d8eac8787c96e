"""Multiruns of trainings: parent run, resumption, tables, and hyperparameter search."""
