"""From a measured graph to what a model reads: features, configuration codes, labels."""
