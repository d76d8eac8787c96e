"""The HTTP server of rankings."""
