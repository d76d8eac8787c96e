"""Input and output that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def at_least(minimum: int) -> Callable[[str], int]:
    """Return the type of an option of argparse: a whole number that is not below `minimum`."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, found {value}")
        return value

    return whole_number


def make_table(columns: Iterable[str]) -> Table:
    """Return an empty table in the style of all commands."""
    from rich.box import SIMPLE
    from rich.table import Table

    return Table(*columns, box=SIMPLE)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; a file or a pipe gets its full width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    console.print(table)
