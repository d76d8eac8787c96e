"""The entry point of the `hlorank` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from hlorank import __version__
from hlorank.cli import best, convert, inspect, rank, register, report, serve
from hlorank.config import ConfigError
from hlorank.files import DataError, escape, one_line

_COMMANDS = (convert, inspect, best, report, rank, register, serve)
_PLUGINS = "hlorank.commands"
"""Entry points of other packages: each is a function that adds a command to the subparsers."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(escape, super().format(record).split("\n")))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command, with all subcommands."""
    parser = _Parser(
        prog="hlorank",
        description="Ranks the compiler configurations of XLA programs.",
        epilog="`hlorank COMMAND --help` describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    for plugin in sorted(entry_points(group=_PLUGINS), key=lambda plugin: plugin.name):
        plugin.load()(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; without a command, show the help.

    Wrong data, and files or MLflow stores that cannot be used, are one line on standard error and status 1; wrong usage
    is status 2.
    """
    log = logging.StreamHandler()
    log.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[log])
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # urllib3 warns of every retry
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 0
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # by default, an unreachable store takes minutes
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    try:
        status: int = parsed.run(parsed)
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return status


def _message(error: Exception) -> str | None:
    """Return the message of an error in the input or its environment, None for an error of the program."""
    if isinstance(error, ConfigError | DataError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    if isinstance(error, _store_errors()):
        uri = sys.modules["mlflow"].get_tracking_uri()
        return one_line(f"MLflow store {uri}: {str(error).strip().splitlines()[0]}")
    return None


def _store_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of MLflow and of its database, if they are imported; their import takes seconds."""
    names = {"mlflow.exceptions": "MlflowException", "sqlalchemy.exc": "SQLAlchemyError"}
    return tuple(getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules)
