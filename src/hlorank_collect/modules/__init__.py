"""Programs that are given as modules: what can be measured, and example inputs."""
