"""Results of fitting a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Predictor, Trees

MAX_ROWS = 250_000
"""Rows, over all graphs, that a baseline is fitted to at most: about a gigabyte, whatever the number of graphs."""


def rows_of_each(wanted: int, graphs: int) -> int:
    """Return how many rows of each graph a baseline is fitted to: as many as wanted, but `MAX_ROWS` over all."""
    return max(2, min(wanted, MAX_ROWS // max(1, graphs)))


class Candidate(NamedTuple):
    """A predictor among those of which the best on the validation graphs is kept."""

    predictor: Predictor
    epoch: int = 1  # number in the history, increasing
    steps: int = 1  # trees, or iterations of a solver; 1 for a rule
    train_loss: float | None = None  # None for a rule


@dataclass(frozen=True, eq=False)
class Fit:
    """Candidates, the time of a step, None for a rule, and all trees where a candidate is some of them."""

    candidates: Sequence[Candidate]
    step_seconds: float | None = None
    trees: Trees | None = None

    def scores(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score distinct configurations by each candidate, (configurations, candidates) float64, larger = slower."""
        if self.trees is not None:
            return self.trees.staged(graph.rows(rows))[:, [candidate.steps for candidate in self.candidates]]
        return np.stack([candidate.predictor.score(graph, rows) for candidate in self.candidates], axis=1)
