"""Measuring configurations against each other: interleaved rounds, until two halves of them rank alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.metrics import kendall_tau

Float64 = NDArray[np.float64]
Timer = Callable[[int], float]
"""Measures the configuration of this index once, and returns its runtime in nanoseconds."""


@dataclass(frozen=True)
class Rounds:
    """When measuring ends: after the round limit or the time limit, or as soon as two halves of the rounds agree."""

    least: int = 10
    """Rounds before the halves are compared."""
    most: int = 100
    tau: float = 0.9
    """Split-half Kendall tau that is good enough."""
    check: int = 5
    """Rounds between two comparisons."""
    certain: int = 2
    """Rounds that are measured whatever the time limit says, up to `most`: halves need one each."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.check < 1:
            raise ValueError(f"rounds: expected 1 <= least <= most and check >= 1, found {self}")


def runtimes(times: Float64) -> Float64:
    """The runtime of each configuration, freed of what slows down whole rounds.

    exp of the median over rounds of (log T - median over configurations of log T), times the machine's usual level:
    exp of the median over rounds of the median over configurations of log T.

    Args:
        times: (rounds, configurations) nanoseconds, at least one of each, all positive.

    Returns:
        (configurations,) float64, nanoseconds.
    """
    logs = np.log(times)
    level = np.median(logs, axis=1, keepdims=True)
    estimate: Float64 = np.exp(np.median(logs - level, axis=0) + np.median(level))
    return estimate


def split_half_tau(times: Float64) -> float:
    """Kendall tau between the runtimes by every other round and by the rounds between: -1..1.

    NaN where there are fewer than two rounds or configurations.
    """
    if len(times) < 2:
        return math.nan
    return kendall_tau(runtimes(times[::2]), runtimes(times[1::2]))


def timer_of(run: Callable[[int], object]) -> Timer:
    """A timer of a Python function: one warm run, then the faster of two."""

    def timer(index: int) -> float:
        run(index)
        times = []
        for _ in range(2):
            start = time.perf_counter_ns()
            run(index)
            times.append(time.perf_counter_ns() - start)
        return float(min(times))

    return timer


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def measure(
    timer: Timer,
    configurations: int,
    rng: np.random.Generator,
    rounds: Rounds | None = None,
    *,
    deadline: float = math.inf,
    heartbeat: Callable[[int], None] = lambda _: None,
) -> Float64:
    """Measures all configurations round by round, each round in an order of its own.

    Args:
        timer: measures one configuration.
        configurations: how many there are, at least 1.
        rng: shuffles the rounds.
        rounds: when to end; None = the defaults.
        deadline: `time.monotonic()` after which no round is begun, other than those that are certain.
        heartbeat: called with the number of rounds done, after each.

    Returns:
        (rounds, configurations) float64, nanoseconds.

    Raises:
        ValueError: there are no configurations, or the timer returned a time that is not positive and finite.
    """
    if configurations < 1:
        raise ValueError(f"configurations: expected at least 1, found {configurations}")
    rounds = rounds or Rounds()
    done: list[Float64] = []
    with _no_garbage_collection():
        while len(done) < rounds.most:
            row = np.empty(configurations)
            for index in rng.permutation(configurations).tolist():
                row[index] = timer(index)
                if not 0 < row[index] < math.inf:
                    raise ValueError(f"timer: expected a positive time, found {row[index]} of configuration {index}")
            done.append(row)
            heartbeat(len(done))
            count = len(done)
            if count >= rounds.certain and time.monotonic() > deadline:
                break
            if count >= rounds.least and (count - rounds.least) % rounds.check == 0:
                tau = split_half_tau(np.stack(done))
                if tau >= rounds.tau or configurations == 1:
                    break
    return np.stack(done)
