"""Search for fast configurations in a few batches of measurements, and the significance of what it finds."""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.graph import Graph, Int64
from hlorank.files import DataError
from hlorank.hlo.layout_space import Float64, Layouts, LayoutSpace, random
from hlorank_collect.autotune.acquisition import node_kinds
from hlorank_collect.autotune.evolution import Evolution, Score

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


@contextmanager
def model_scores(model: str, graph: Graph, node_ids: Int64) -> Iterator[Score]:
    """Yield the score function of a model, in another process, as PyTorch and the compiler for TPUs crash together."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_scores, args=(there, model, graph, node_ids))
    multiprocessing.current_process().daemon = False  # a daemon may start no process
    process.start()
    there.close()

    def score(layouts: Layouts) -> Float64:
        here.send(layouts)
        found: Float64 | DataError = here.recv()
        if isinstance(found, DataError):
            raise found
        return found

    try:
        yield score
    finally:
        here.close()  # which ends the process
        process.join()


def _serve_scores(pipe: Connection, model: str, graph: Graph, node_ids: Int64) -> None:
    import torch

    from hlorank.ranking.ranker import Ranker

    torch.set_num_threads(1)  # the process has one core
    with suppress(EOFError):  # the process that asks has ended
        try:
            ranker = Ranker(Path(model))
            while True:
                layouts = LayoutConfigurations.from_chunks(node_ids, [pipe.recv()])
                pipe.send(ranker.score(graph, layouts))
        except DataError as error:
            pipe.send(error)


@contextmanager
def find_candidates(
    model: str | None, graph: Graph, space: LayoutSpace, count: int, budget: int, rng: np.random.Generator
) -> Iterator[Candidates]:
    """Yield `count` configurations that a trained model scores, or random ones; DataError if it ranks no layouts."""
    if model is None:
        yield RandomCandidates(space, count, rng)
        return
    batches = math.ceil(budget / batch_size(budget))
    with model_scores(model, graph, space.node_ids) as score:
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
