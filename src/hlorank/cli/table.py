"""Tables of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Prints a table as wide as the terminal; in a file or a pipe it is as wide as it has to be."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    console.print(table)
