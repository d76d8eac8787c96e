"""Training of cost models: one trainer, losses, samplers, graph segment training (`gst`) and baselines."""
