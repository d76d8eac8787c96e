"""Options and tables that commands share."""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO, TextIOWrapper
from typing import Any

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from hlorank.files import escape

_GAP = 2
_NOTE_WIDTH = 80  # where the width of the table is not limited


def min_int(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return the type of an option of argparse: a whole number within bounds."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, found {value}")
        if maximum is not None and value > maximum:
            raise argparse.ArgumentTypeError(f"expected at most {maximum}, found {value}")
        return value

    return whole_number


def add_number(
    group: argparse._ActionsContainer,
    option: str,
    default: int,
    meaning: str,
    minimum: int = 1,
    metavar: str = "N",
    dest: str | None = None,
) -> None:
    """Add an option that is a whole number; its help names the default."""
    meaning = f"{meaning} (default: %(default)s)"
    group.add_argument(option, type=min_int(minimum), default=default, metavar=metavar, dest=dest, help=meaning)


def add_table_options(parser: argparse._ActionsContainer, row: str) -> None:
    """Add --wide and --json, for a command that prints a table with a row for each `row`."""
    parser.add_argument("--wide", action="store_true", help="print all columns, also if the terminal is too narrow")
    parser.add_argument("--json", action="store_true", help=f"print a JSON list with one object for each {row}")


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Write all characters, and end with status 141 where the reader of the standard output stops, as `head` does.

    Characters that the encoding lacks are written as escapes.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the same error again at its end, when it flushes the standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


@dataclass(frozen=True)
class Column:
    r"""A column of a table; its cells are never broken or cut.

    Attributes:
        title: heading, with \n between its lines.
        rank: columns take their place in this order, as long as the table fits; 0 is always shown.
        number: the cells are aligned to the right.
        detail: shown only if all columns are asked for.
        form: format of the values, such as `,` or `.4f`.
    """

    title: str
    rank: int = 0
    number: bool = False
    detail: bool = False
    form: str = ""


def cells(columns: Mapping[str, Column], values: Mapping[str, Any]) -> list[str]:
    """Return the cell of each column: the value of its key, formatted, or nothing if there is none."""
    return ["" if values.get(key) is None else format(values[key], column.form) for key, column in columns.items()]


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[object] | str], wide: bool = False, option: str = "--wide"
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
    cells = [[escape(str(cell)) for cell in row] for row in rows if not isinstance(row, str)]
    filled = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    bounded = sys.stdout.isatty() or re.fullmatch("[1-9][0-9]*", os.environ.get("COLUMNS", ""))
    limit = shutil.get_terminal_size().columns if bounded and not wide else None
    shown, width = list[int](), -_GAP
    for index in sorted(filled, key=lambda index: columns[index].rank):
        column = columns[index]
        needed = width + _GAP + max(map(cell_len, (*column.title.split("\n"), *(row[index] for row in cells))))
        if wide or (not column.detail and (column.rank == 0 or limit is None or needed <= limit)):
            shown, width = sorted([*shown, index]), needed
    lines = _lines([columns[index] for index in shown], [[row[index] for index in shown] for row in cells], width)
    head, body = lines[: len(lines) - len(cells)], iter(lines[len(lines) - len(cells) :])
    for line in (*head, *(escape(row) if isinstance(row, str) else next(body) for row in rows)):
        sys.stdout.write(f"{line.rstrip()}\n")
    if missing := [" ".join(columns[index].title.split()) for index in filled if index not in shown]:
        note = textwrap.fill(f"Not shown: {', '.join(missing)}.", limit or _NOTE_WIDTH, break_on_hyphens=False)
        sys.stdout.write(f"\n{note}\nAll columns: {option}\n")


def print_result(
    arguments: argparse.Namespace, value: object, columns: Sequence[Column], rows: Sequence[Sequence[object] | str]
) -> None:
    """Print a value as JSON or as rows of a table, as the options of `add_table_options` say."""
    if arguments.json:
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
    else:
        print_table(columns, rows, arguments.wide)


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table: headings aligned at their last line, a rule, and a line for each row."""
    rule = "──" if (sys.stdout.encoding or "").lower().startswith("utf") else "--"
    box = Box("\n".join(f" {rule} " if line == 2 else "    " for line in range(8)), ascii=True)  # rich replaces none
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    text = StringIO()
    Console(file=text, width=max(width, 1), markup=False, emoji=False, highlight=False, color_system=None).print(table)
    return text.getvalue().splitlines()
