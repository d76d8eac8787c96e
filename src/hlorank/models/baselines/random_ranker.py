"""Scores that say nothing: the ranker that anyone must beat."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictor import Predictor, check_array, check_values


@dataclass(frozen=True, eq=False)
class RandomRanker(Predictor):
    """Uniform numbers that depend on the seed, the graph's name and the number of the distinct configuration alone.

    Attributes:
        seed: (1,) int64, from 0.
    """

    seed: NDArray[np.int64]

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(configurations,) float64 in [0, 1)."""
        rng = np.random.default_rng([int(self.seed[0]), zlib.crc32(graph.name.encode())])
        scores: NDArray[np.float64] = rng.random(rows.max(initial=-1) + 1)[rows]
        return scores

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The scores, as nothing else is known: (configurations, 1) float64."""
        return self.score(graph, rows)[:, None]

    def check(self, columns: int) -> None:  # noqa: ARG002 - any graph can be scored
        """Makes sure that the seed is one.

        Raises:
            DataError: it is not.
        """
        check_array("seed", self.seed, np.int64, (1,))
        check_values("seed", self.seed >= 0, "a number from 0")
