"""Evaluation of trained models: metrics of collections, protocols, submissions, and the report."""
