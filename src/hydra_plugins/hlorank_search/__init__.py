"""hlorank's Hydra plugins: a sweeper and a launcher; Hydra finds them in the namespace package `hydra_plugins`."""
