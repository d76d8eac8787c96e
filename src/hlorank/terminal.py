"""Options and tables that commands share."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper

from rich.cells import cell_len

from hlorank.files import escape

_GAP = "  "
_NOTE_WIDTH = 80  # where the width of the table is not limited


def min_int(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return the type of an option of argparse: a whole number that is not below `minimum` nor above `maximum`."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, found {value}")
        if maximum is not None and value > maximum:
            raise argparse.ArgumentTypeError(f"expected at most {maximum}, found {value}")
        return value

    return whole_number


def add_table_options(parser: argparse._ActionsContainer, row: str) -> None:
    """Add --wide and --json, for a command that prints a table with a row for each `row`."""
    parser.add_argument("--wide", action="store_true", help="print all columns, also if the terminal is too narrow")
    parser.add_argument("--json", action="store_true", help=f"print a JSON list with one object for each {row}")


def allow_any_encoding() -> None:
    """Print characters that the encoding of the standard output lacks as escapes, where Python would raise an error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End with status 141, without a line, where the reader of the standard output stops early, as `head` does.

    Also a decorator of the main function of a command.

    Raises:
        SystemExit: nobody reads the standard output.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the same error again at its end, when it flushes the standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def _rule(width: int) -> str:
    return ("─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-") * width


@dataclass(frozen=True)
class Column:
    r"""A column of a table; its cells are never broken or cut.

    Attributes:
        title: heading, with \n between its lines.
        rank: columns take their place in this order, as long as the table fits; 0 is always shown.
        number: the cells are aligned to the right.
        detail: shown only if all columns are asked for.
    """

    title: str
    rank: int = 0
    number: bool = False
    detail: bool = False


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[object] | str],
    wide: bool = False,
    option: str = "--wide",
) -> None:
    """Print a table, without the columns for which the terminal is too narrow, and then a line that names them.

    In a pipe or a file the width is not limited, unless the variable COLUMNS is set. Columns without any content are
    left out silently.

    Args:
        columns: the columns.
        rows: a cell for each column; text instead is a line of its own, across all columns.
        wide: print all columns, whatever the width.
        option: option or command that prints all columns, for the last line.
    """
    cells = [row if isinstance(row, str) else [escape(str(cell)) for cell in row] for row in rows]
    filled = [index for index in range(len(columns)) if any(row[index] for row in cells if not isinstance(row, str))]
    sizes = {
        index: max(
            *map(cell_len, columns[index].title.split("\n")),
            *(cell_len(row[index]) for row in cells if not isinstance(row, str)),
        )
        for index in filled
    }
    limit = None if wide else _limit()
    shown: list[int] = []
    width = -len(_GAP)
    for index in sorted(filled, key=lambda index: columns[index].rank):
        column, needed = columns[index], width + len(_GAP) + sizes[index]
        if wide or (not column.detail and (column.rank == 0 or limit is None or needed <= limit)):
            shown, width = sorted([*shown, index]), needed
    for line in _lines([columns[index] for index in shown], [sizes[index] for index in shown], shown, cells):
        sys.stdout.write(f"{line.rstrip()}\n")
    if missing := [" ".join(columns[index].title.split()) for index in filled if index not in shown]:
        note = textwrap.fill(f"Not shown: {', '.join(missing)}.", limit or _NOTE_WIDTH, break_on_hyphens=False)
        sys.stdout.write(f"\n{note}\nAll columns: {option}\n")


def _limit() -> int | None:
    """Return the width of the terminal; None for a pipe or a file."""
    if sys.stdout.isatty() or re.fullmatch("[1-9][0-9]*", os.environ.get("COLUMNS", "")):
        return shutil.get_terminal_size().columns
    return None


def _lines(
    columns: Sequence[Column], sizes: Sequence[int], indices: Sequence[int], rows: Sequence[Sequence[str] | str]
) -> Iterator[str]:
    """Return the lines of a table: headings aligned at their last line, a rule, and the rows."""

    def line(cells: Sequence[str]) -> str:
        padded = []
        for column, size, cell in zip(columns, sizes, cells, strict=True):
            space = " " * (size - cell_len(cell))
            padded.append(space + cell if column.number else cell + space)
        return _GAP.join(padded)

    titles = [column.title.split("\n") for column in columns]
    height = max(map(len, titles), default=0)
    yield from map(line, zip(*([""] * (height - len(title)) + title for title in titles), strict=True))
    yield _rule(sum(sizes) + len(_GAP) * (len(sizes) - 1))
    for row in rows:
        yield escape(row) if isinstance(row, str) else line([row[index] for index in indices])
