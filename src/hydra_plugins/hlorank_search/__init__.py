"""hlorank's sweeper; Hydra finds it in the namespace package `hydra_plugins`."""
