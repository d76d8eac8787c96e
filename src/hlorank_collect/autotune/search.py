"""Search for fast configurations in a few batches of measurements, and the significance of what it finds."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.compute import end_with_parent
from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.graph import Graph, Int64
from hlorank.hlo.layout_space import Float64, Layouts, LayoutSpace, random
from hlorank_collect.autotune.acquisition import node_kinds
from hlorank_collect.autotune.evolution import Evolution

CONFIDENCE = 0.95
_RESAMPLES = 2000
_BATCHES = 3  # what one measures, the next one uses


class RandomCandidates:
    """Random configurations, measured in the order in which they are drawn: a baseline without a model."""

    def __init__(self, space: LayoutSpace, count: int, rng: np.random.Generator) -> None:
        self.layouts = random(space, count + 1, rng, lambda _: np.zeros(0))

    def choose(self, _: Mapping[int, float], excluded: set[int], count: int) -> Int64:
        """Choose the next candidates but the excluded."""
        left = [candidate for candidate in range(1, len(self.layouts)) if candidate not in excluded]
        return np.array(left[:count], dtype=np.int64)

    def score(self, _: int) -> None:
        """Return None."""


Candidates = RandomCandidates | Evolution


@cache
def _ranker(model: str) -> Any:
    import torch

    from hlorank.ranking.ranker import Ranker

    torch.set_num_threads(1)  # the process has one core
    return Ranker(Path(model))


def _score(model: str, graph: Graph, node_ids: Int64, layouts: Layouts) -> Float64:
    scores: Float64 = _ranker(model).score(graph, LayoutConfigurations.from_chunks(node_ids, [layouts]))
    return scores


@contextmanager
def find_candidates(
    model: str | None, graph: Graph, space: LayoutSpace, count: int, budget: int, rng: np.random.Generator
) -> Iterator[Candidates]:
    """Yield `count` configurations that a trained model scores, or random ones; DataError if it ranks no layouts."""
    if model is None:
        yield RandomCandidates(space, count, rng)
        return
    batches = math.ceil(budget / batch_size(budget))
    multiprocessing.current_process().daemon = False  # a daemon may start no process
    spawn = multiprocessing.get_context("spawn")
    # Another process, as PyTorch and the compiler for TPUs crash together.
    with ProcessPoolExecutor(1, spawn, end_with_parent, (os.getpid(),)) as pool:

        def score(layouts: Layouts) -> Float64:
            return pool.submit(_score, model, graph, space.node_ids, layouts).result()

        yield Evolution(space, node_kinds(graph, space.node_ids), score, size=count + 1, batches=batches, rng=rng)


def batch_size(budget: int) -> int:
    """Return the number of measurements of a batch, of which there are three; fewer for a budget of 1, 2 or 4."""
    return math.ceil(budget / _BATCHES)


def propose(
    choose: Callable[[Mapping[int, float], set[int], int], Int64],
    measure: Callable[[Int64], Float64],
    budget: int,
    deadline: float = math.inf,
) -> dict[int, float]:
    """Measure configurations batch by batch, and return the relative runtime of each in the order of trial.

    `choose` gets the log runtimes of the measured configurations, the excluded ones, and a number; `measure` returns
    inf for configurations that fail, which cost no budget.
    """
    tried: dict[int, float] = {}
    left = budget
    while left > 0 and time.monotonic() < deadline:
        logs = {candidate: math.log(runtime) for candidate, runtime in tried.items() if math.isfinite(runtime)}
        chosen = choose(logs, set(tried), min(left, batch_size(budget)))
        if not len(chosen):
            break
        runtimes = measure(chosen)
        tried.update(zip(chosen.tolist(), runtimes.tolist(), strict=True))
        left -= int(np.isfinite(runtimes).sum())
    return tried


@dataclass(frozen=True)
class Speedup:
    """Runtime of the default divided by that of a configuration: median over rounds and 95 % confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """True if the configuration is faster beyond noise."""
        return self.low > 1


def speedup(times: Float64, configuration: int, rng: np.random.Generator) -> Speedup:
    """Return the median over rounds of the default's time by the configuration's, in which effects on rounds cancel."""
    from scipy.stats import bootstrap

    logs = np.log(times[:, 0]) - np.log(times[:, configuration])
    if np.ptp(logs) == 0:
        only = float(np.exp(logs[0]))
        return Speedup(only, only, only)
    interval = bootstrap(
        (logs,), np.median, confidence_level=CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", rng=rng
    ).confidence_interval
    return Speedup(*(float(np.exp(value)) for value in (np.median(logs), interval.low, interval.high)))


def winner(times: Float64, rng: np.random.Generator) -> tuple[int, Speedup]:
    """Return the column of the fastest configuration, never the default's, and its speedup, which may be below 1.

    The configuration is chosen on the even rounds, and its speedup is estimated on the odd rounds: on the same rounds,
    the speedup of the best of many would be overestimated. `times` is (rounds, configurations), the default first.
    """
    logs = np.log(times[::2])
    best = 1 + int(np.argmin(np.median(logs[:, 1:] - logs[:, :1], axis=0)))
    return best, speedup(times[1::2], best, rng)
