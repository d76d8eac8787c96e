"""The entry point of the `hlorank` command."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from hlorank.cli import evaluate, init, rank, report, serve
from hlorank.cli.inspect import add_convert, add_inspect
from hlorank.cli.store import add_best, add_register
from hlorank.config import ConfigError
from hlorank.config.extras import named_extra
from hlorank.files import DataError, escape, one_line
from hlorank.runs.store import error_lines
from hlorank.terminal import quiet_pipe
from hlorank.version import __version__

_COMMANDS = (add_convert, add_inspect, add_best, report.add, rank.add, evaluate.add, add_register, serve.add, init.add)
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
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    plugins = sorted(entry_points(group=_PLUGINS), key=lambda plugin: plugin.name)
    for add in (*_COMMANDS, *(plugin.load() for plugin in plugins)):
        add(commands)
    return parser


@quiet_pipe()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 2 for wrong usage and data, 1 for a file or store, 130 at Ctrl-C."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what is finished stays; the same command continues\n")
        return 128 + signal.SIGINT


def _run(arguments: Sequence[str] | None) -> int:
    log = logging.StreamHandler()
    log.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[log])
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # urllib3 warns of every retry
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 0
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ["PYTHONSAFEPATH"] = "1"  # of other processes, which would import files of the working folder
    try:
        with named_extra(f"hlorank {parsed.command}"):
            return int(parsed.run(parsed))
    except BrokenPipeError:
        raise
    except Exception as error:
        lines = error_lines(error)
        if lines is None:
            raise
        sys.stderr.write("\n".join(lines) + "\n")
        return 2 if isinstance(error, ConfigError | DataError) else 1
