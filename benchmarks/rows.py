"""Results of benchmarks as CSV files that grow row by row, and errors of their commands in single lines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from hlorank.config import ConfigError
from hlorank.tracking import error_lines


def run(main: Callable[[], object]) -> None:
    """Run the command of a benchmark; a wrong name or setting, or missing data, is one line on standard error."""
    try:
        main()
    except HydraException as error:
        lines = [f"error: {str(error).splitlines()[0]}"]
    except Exception as error:
        found = error_lines(error)
        if found is None:
            raise
        lines = found
    else:
        return
    sys.exit("\n".join(lines))


def expect(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check names that are given on the command line.

    Raises:
        ConfigError: a name is not known.
    """
    known = sorted(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: expected one of {', '.join(known)}")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return all rows; none where there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add a row, below a header if it is the first."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
