"""The entry point of the `hlorank` command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from hlorank import __version__
from hlorank.cli import autotune, best, collect, convert, inspect, rank, register, report
from hlorank.config import ConfigError
from hlorank.io import DataError

_COMMANDS = (convert, inspect, collect, best, report, rank, register, autotune)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command, with all subcommands."""
    parser = argparse.ArgumentParser(prog="hlorank", description="Ranks the compiler configurations of XLA programs.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; without a command, shows what there is.

    Broken data is one line on standard error and status 1, wrong usage status 2.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s")
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 0
    try:
        status: int = parsed.run(parsed)
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return status
