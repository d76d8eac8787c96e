"""The `hlorank` command; one module a subcommand, each with `add` and `run`."""
