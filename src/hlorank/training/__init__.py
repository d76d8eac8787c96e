"""Training of networks and baselines: preparation, fit, methods, losses, samplers, graph segment training (`gst`)."""
