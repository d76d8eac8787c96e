"""Use of trained models: ranking of graphs, the model registry, and the HTTP servers."""
