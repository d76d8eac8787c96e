"""Programs that are given as modules: what can be measured, example inputs, and smaller batches."""
