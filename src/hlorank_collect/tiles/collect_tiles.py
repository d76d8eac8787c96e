"""Collecting the tiles of the kernels of many programs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hlorank.files import DataError, read_json
from hlorank_collect import busy, worker
from hlorank_collect.collect import Summary, collect_programs
from hlorank_collect.tiles.native import gcc_version
from hlorank_collect.tiles.tile_task import TileTask

CHILD = (sys.executable, "-m", "hlorank_collect.tiles.measure_kernels")


def is_complete(task: TileTask, name: str) -> bool:
    """Whether the kernels of the program of this name have been measured with the same settings."""
    try:
        about = read_json(task.summary(name))
    except DataError:
        return False
    return about.get("fingerprint") == task.fingerprint and all(
        task.npz(kernel).exists() for kernel in about["kernels"]
    )


def line(about: dict[str, Any]) -> str:
    """A measured program in one line; `about` is what its JSON file holds."""
    kinds = Counter(kernel["kind"] for kernel in about["kernels"].values())
    left_out = Counter(about["left_out"])
    taus = [kernel["split_half_tau"] for kernel in about["kernels"].values() if kernel["split_half_tau"] is not None]
    parts = [
        f"{sum(about['harvested'].values())} kernels",
        "measured " + (", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"),
    ]
    if taus:
        parts.append(f"split-half tau {min(taus):.2f} to {max(taus):.2f}")
    if left_out:
        parts.append("left out " + ", ".join(f"{count} ({why})" for why, count in left_out.most_common()))
    return "; ".join(parts)


def collect_tiles(
    tasks: Sequence[TileTask],
    *,
    hang_seconds: float,
    echo: Callable[[str], object],
    check_machine: Callable[[], object] = busy.require_quiet,
) -> Summary:
    """Measures tiles of the kernels of programs, in child processes, one program after the other.

    Each kernel is written as soon as it is measured; one with the structure of another one, of the same settings, is
    not measured again. A kernel that kills or hangs the process is left out, and the program goes on without it.

    Args:
        tasks: the programs; whatever happens to one, the others go on.
        hang_seconds: a child process that says nothing for so long is killed.
        echo: is given a line for each program.
        check_machine: called before the first program is measured; what it raises ends the collection.

    Raises:
        ConfigError: there is no such program, no gcc, or the machine is busy.
    """
    if any(one.platform == "cpu" for one in tasks):
        gcc_version()
    return collect_programs(
        tasks,
        is_complete=is_complete,
        line=line,
        hang_seconds=hang_seconds,
        echo=echo,
        check_machine=check_machine,
        supervise=partial(worker.supervise, command=CHILD),
    )
