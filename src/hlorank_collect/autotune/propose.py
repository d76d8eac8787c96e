"""Choice of the configurations to measure next: a trained model's ranking, corrected by the measured runtimes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.metrics import ranking

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Priority = Callable[[Mapping[int, float]], Float64]
"""Maps the relative runtimes of the measured candidates to (candidates,) priorities: smaller = sooner."""

_DIRECTIONS = (
    16  # principal directions of the embeddings; the others hold almost none of the variance of the few candidates
)
_NOISE = 0.1  # share of the residuals' variance: from quick measurements, and from effects outside the embedding


@dataclass(frozen=True, eq=False)
class Adapted:
    """Priorities by a Gaussian process on the embeddings.

    A straight line maps scores to log runtimes, and the process is fitted to its residuals; the sum of both is the
    priority. There is no bonus for uncertain candidates: with small budgets it lowers the speedup that is found
    (benchmarks/adaptation.py). Before two candidates are measured, the score is the priority.

    Attributes:
        scores: (candidates,) larger = slower.
        embedding: (candidates, width), the model's embedding of each candidate.
    """

    scores: Float64
    embedding: Float64

    def __call__(self, measured: Mapping[int, float]) -> Float64:
        """Return the priorities; failed candidates, whose runtime is inf, are ignored."""
        known = np.array([one for one, runtime in measured.items() if math.isfinite(runtime)], dtype=np.int64)
        if len(known) < 2:
            return self.scores
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, WhiteKernel
        from sklearn.linear_model import LinearRegression

        logs = np.log([measured[one] for one in known.tolist()])
        # The scores of a model whose ranking is reversed are ignored.
        line = LinearRegression(positive=True).fit(self.scores[known, None], logs)
        expected: Float64 = line.predict(self.scores[:, None])
        residuals = logs - expected[known]
        spread = float(residuals.std())
        if spread == 0:
            return expected
        points = _principal(self.embedding)
        # Hyperparameters are fixed: a few points are too few to fit them. Squared distances are 2 on average.
        process = GaussianProcessRegressor(RBF(1.0) + WhiteKernel(_NOISE), optimizer=None)
        process.fit(points[known], residuals / spread)
        adapted: Float64 = expected + spread * process.predict(points)
        return adapted


def _principal(embedding: Float64) -> Float64:
    """Project candidates on the principal directions of their embeddings, scaled to a mean squared distance of 2."""
    centred = embedding - embedding.mean(axis=0)
    left, length, _ = np.linalg.svd(centred, full_matrices=False)
    points: Float64 = left[:, :_DIRECTIONS] * length[:_DIRECTIONS]
    scale = math.sqrt(float(np.square(points).sum(axis=1).mean()))
    return points / scale if scale > 0 else points


def propose(
    priority: Priority,
    measure: Callable[[Int64], Float64],
    *,
    batch: int,
    budget: int,
    in_time: Callable[[], bool] = lambda: True,
) -> dict[int, float]:
    """Measure candidates batch by batch, always the most promising ones.

    Args:
        priority: called before each batch.
        measure: returns the relative runtimes of some candidates, inf for those that fail.
        batch: candidates measured before the priorities are updated.
        budget: number of candidates to measure, without those that fail.
        in_time: called before each batch; False ends the search.

    Returns:
        The relative runtime of each tried candidate, in the order of trial.
    """
    tried: dict[int, float] = {}
    left = budget
    while left > 0 and in_time():
        order = [one for one in ranking(priority(tried)).tolist() if one not in tried]
        if not order:
            break
        chosen = np.array(order[: min(batch, left)], dtype=np.int64)
        runtimes = measure(chosen)
        tried.update(zip(chosen.tolist(), runtimes.tolist(), strict=True))
        left -= int(np.isfinite(runtimes).sum())
    return tried
