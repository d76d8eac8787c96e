"""Origins of collections: one module each."""
