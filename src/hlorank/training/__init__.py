"""Methods, losses, configuration sampling and the Lightning module."""
