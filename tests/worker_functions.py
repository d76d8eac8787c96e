"""Functions for worker processes, which import them by name, and little else."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hlorank.compute import map_graphs
from hlorank.config import ComputeConfig
from hlorank.config.extension_point import imported_plugins
from hlorank.files import DataError


class ForeignError(Exception):
    """An error that can be pickled, and not read again."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def process_of(item: int) -> tuple[int, int, str | None]:
    return item, os.getpid(), os.environ.get("OMP_NUM_THREADS")


def even(item: int) -> int:
    if item % 2:
        raise DataError("item", "an even number", item, file=Path("a.npz"))
    return item


def fail(item: int, error: Callable[[int], BaseException]) -> NoReturn:
    raise error(item)


def die(item: int, folder: Path, deaths: Mapping[int, int]) -> int:
    """Return the item, if it has killed the process as often as `deaths` says."""
    calls = len([*folder.glob(f"{item}.*")])
    (folder / f"{item}.{calls}").touch()
    if calls < deaths.get(item, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def wait_for_the_last(item: int, folder: Path, count: int) -> bool:
    """Return for item 0 when the last item has been done, or False after a minute."""
    if item == count - 1:
        (folder / "done").touch()
    deadline = time.monotonic() + 60
    while item == 0 and not (folder / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return item > 0 or (folder / "done").exists()


def folder_and_plugins(_: int) -> tuple[Path, tuple[str, ...]]:
    return Path.cwd(), imported_plugins()


def treated_and_error(
    function: Callable[[Any], Any], items: Sequence[Any], config: ComputeConfig
) -> tuple[list[Any], BaseException]:
    """Return the results before the error that ends the work, and the error."""
    treated: list[Any] = []
    try:
        treated.extend(map_graphs(function, items, config, "test"))
    except BaseException as error:
        return treated, error
    raise AssertionError(treated)
