"""The in-memory schema of measured graphs, collections and their files in the official npz tree, and splits."""
