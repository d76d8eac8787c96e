"""The `hlorank` command: functions that add the subcommands, which the entry point calls."""
