"""The `hlorank` command: one module for each subcommand, with `add` and `run`."""
