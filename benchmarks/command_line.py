"""Arguments of benchmarks, checked before anything is measured, and errors as single lines."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from hydra.errors import HydraException

from hlorank.config import ConfigError
from hlorank.files import DataError, one_line
from hlorank.runs.store import error_lines


class _Formatter(argparse.HelpFormatter):
    """Wraps each paragraph of the description, except indented ones, which are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.rstrip().split("\n\n")
        fill = super()._fill_text
        return "\n\n".join(one if one.startswith("    ") else fill(one, width, indent) for one in paragraphs)


class Parser(argparse.ArgumentParser):
    """Parser of a benchmark's arguments.

    Args:
        description: docstring of the benchmark.
    """

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after one line."""
        self.exit(2, f"error: {one_line(message)}\n")

    def add_json(self, help: str = "also write the figures as JSON") -> None:  # noqa: A002 (as argparse names it)
        """Add --json, which takes a path that can be written."""
        self.add_argument("--json", type=output_file, metavar="FILE", help=help)


def positive(text: str) -> float:
    """Return a finite number above 0; the type of an option."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return value


def output_file(path: str | Path) -> Path:
    """Return a path after a check that it can be written; the type of an option. The parent folder is created.

    Raises:
        OSError: no file can be created there.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def expect(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check names that are given on the command line.

    Raises:
        ConfigError: a name is not known.
    """
    known = sorted(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: expected one of {', '.join(known)}")


def run(main: Callable[[], object]) -> None:
    """Run the command of a benchmark and report its errors as lines on standard error.

    The status is 2 for a wrong name, setting or file, and 1 for a file or store that cannot be used.
    """
    try:
        main()
    except HydraException as error:
        lines, status = [f"error: {str(error).splitlines()[0]}"], 2
    except Exception as error:
        found = error_lines(error)
        if found is None:
            raise
        lines, status = found, 2 if isinstance(error, ConfigError | DataError) else 1
    else:
        return
    sys.stderr.write("\n".join(lines) + "\n")
    sys.exit(status)
