"""What hlorank adds to Hydra's sweeps; Hydra finds its plugins in the namespace package `hydra_plugins`."""
