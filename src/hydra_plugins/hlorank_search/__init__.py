"""The sweeper of hlorank's searches; Hydra finds its plugins in the namespace package `hydra_plugins`."""
