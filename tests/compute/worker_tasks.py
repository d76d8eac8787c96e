"""Functions for worker processes, which import them by name."""

from __future__ import annotations

import os
from pathlib import Path

from hlorank.config.plugins import imported_plugins
from hlorank.files import DataError


def process_of(item: int) -> tuple[int, int]:
    """Return the item and the id of this process."""
    return item, os.getpid()


def plugins_of(_: int) -> tuple[str, ...]:
    """Return the plugins of this process."""
    return imported_plugins()


def even(item: int, file: Path) -> int:
    """Return the item, or raise DataError if it is odd."""
    if item % 2:
        raise DataError("item", "an even number", item, file=file)
    return item


def die_at_2(item: int) -> int:
    """Return the item; 2 kills the process."""
    if item == 2:
        os._exit(3)
    return item
