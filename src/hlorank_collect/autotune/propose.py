"""Search for fast configurations in a few batches of measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import Int64

Float64 = NDArray[np.float64]
Choose = Callable[[Mapping[int, float], set[int], int], Int64]
"""Chooses configurations to measure: from the log runtimes of the measured ones relative to the default, those not to
choose, and a number."""

_BATCHES = 3  # what one measures, the next one uses


def batch_size(budget: int) -> int:
    """Return the number of measurements of a batch, of which there are three; fewer for a budget of 1, 2 or 4."""
    return math.ceil(budget / _BATCHES)


def in_order(count: int) -> Choose:
    """Choose configurations 1 to `count` in this order: a baseline without a model."""

    def choose(_: Mapping[int, float], excluded: set[int], wanted: int) -> Int64:
        left = [one for one in range(1, count + 1) if one not in excluded]
        return np.array(left[:wanted], dtype=np.int64)

    return choose


def propose(
    choose: Choose,
    measure: Callable[[Int64], Float64],
    *,
    budget: int,
    in_time: Callable[[], bool] = lambda: True,
) -> dict[int, float]:
    """Measure configurations batch by batch.

    Args:
        choose: called before each batch.
        measure: returns the relative runtimes of some configurations, inf for those that fail.
        budget: number of configurations to measure, without those that fail.
        in_time: called before each batch; False ends the search.

    Returns:
        The relative runtime of each tried configuration, in the order of trial.
    """
    tried: dict[int, float] = {}
    left = budget
    while left > 0 and in_time():
        logs = {one: math.log(runtime) for one, runtime in tried.items() if math.isfinite(runtime)}
        chosen = choose(logs, set(tried), min(left, batch_size(budget)))
        if not len(chosen):
            break
        runtimes = measure(chosen)
        tried.update(zip(chosen.tolist(), runtimes.tolist(), strict=True))
        left -= int(np.isfinite(runtimes).sum())
    return tried
