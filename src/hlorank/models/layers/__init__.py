"""Layers of the cost model, and LAYERS, by which the configuration names them."""
