"""Execution of per-graph work: in this process or in local worker processes."""
