"""Origins of collections, a module for each; `origins` maps their names to them."""
