"""Which configurations to measure next: a trained model's ranking, corrected by what was measured so far."""

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
"""From the relative runtimes of what was measured, by candidate, to (candidates,) priorities: smaller = sooner."""

_DIRECTIONS = 16  # principal directions of the embeddings; those beyond hold next to nothing of the few candidates
_NOISE = 0.1  # of the residuals' variance: quick measurements, and what no embedding can tell


@dataclass(frozen=True, eq=False)
class Adapted:
    """A Gaussian process on the embeddings, over a line through the scores.

    The residuals of a straight line from score to log runtime are what the process is fitted to; its mean is the
    priority. No bonus for what is uncertain: budgets are small, and it cost more than it found
    (benchmarks/adaptation.py). Before anything is measured the score is the priority.

    Attributes:
        scores: (candidates,) larger = slower.
        embedding: (candidates, width), what the model knows of each candidate.
    """

    scores: Float64
    embedding: Float64

    def __call__(self, measured: Mapping[int, float]) -> Float64:
        """The priorities; failed candidates, of runtime inf, teach nothing."""
        known = np.array([one for one, runtime in measured.items() if math.isfinite(runtime)], dtype=np.int64)
        if len(known) < 2:
            return self.scores
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, WhiteKernel
        from sklearn.linear_model import LinearRegression

        logs = np.log([measured[one] for one in known.tolist()])
        # A model that ranks the wrong way round is ignored, not believed.
        line = LinearRegression(positive=True).fit(self.scores[known, None], logs)
        expected: Float64 = line.predict(self.scores[:, None])
        residuals = logs - expected[known]
        spread = float(residuals.std())
        if spread == 0:
            return expected
        points = _principal(self.embedding)
        # Nothing is fitted: a few points say too little about the kernel. Squared distances are 2 on average.
        process = GaussianProcessRegressor(RBF(1.0) + WhiteKernel(_NOISE), optimizer=None)
        process.fit(points[known], residuals / spread)
        adapted: Float64 = expected + spread * process.predict(points)
        return adapted


def _principal(embedding: Float64) -> Float64:
    """The candidates along the principal directions of their embeddings, at a mean squared distance of 2."""
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
    """Measures candidates batch by batch, each batch the most promising ones by then.

    Args:
        priority: is asked before each batch.
        measure: the relative runtimes of some candidates, inf for those that fail.
        batch: candidates measured before the priorities are asked again.
        budget: of candidates that do not fail.
        in_time: asked before each batch; False ends the search.

    Returns:
        The relative runtime of each candidate that was tried, in the order of trial.
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
