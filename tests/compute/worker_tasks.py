"""Functions for worker processes, which import them by name."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Container
from pathlib import Path

from hlorank.config import ConfigError
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


def even_number(item: int) -> int:
    """Return the item."""
    return item


def inverse(item: tuple[str, Path, int]) -> float:
    """Return the inverse of the number."""
    return 1 / item[2]


def misconfigured(item: int) -> int:
    """Raise ConfigError."""
    raise ConfigError("no such thing")


def fill_disk(item: int) -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(item))


def unpicklable(item: int) -> object:
    """Return an object that cannot be sent to another process."""
    return threading.Lock()


def die_once(item: int, folder: Path, deadly: Container[int]) -> int:
    """Return the item; in the first call of a deadly item the process ends."""
    first = not any(folder.glob(f"{item}.*"))
    (folder / f"{item}.{os.getpid()}").touch()
    if first and item in deadly:
        os._exit(3)
    return item


def be_killed(item: int) -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def exhaust(item: int) -> None:
    """Raise MemoryError."""
    raise MemoryError


def wait_for_the_last(folder: Path, count: int, item: int) -> bool:
    """Return for item 0 when the last item has been done, or False after a minute."""
    if item == count - 1:
        (folder / "done").touch()
    deadline = time.monotonic() + 60
    while item == 0 and not (folder / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return item > 0 or (folder / "done").exists()
