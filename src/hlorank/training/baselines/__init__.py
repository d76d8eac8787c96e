"""Training of the baselines: a fit for each, and the steps that all of them share."""
