"""Execution of per-graph work: in this process, in local worker processes or on a Ray cluster."""
