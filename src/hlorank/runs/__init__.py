"""Runs, sweeps and registered models in MLflow, the locks of trainings, and hyperparameter searches."""
