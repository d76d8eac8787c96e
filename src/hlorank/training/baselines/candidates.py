"""Results of fitting a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Predictor, Trees

MAX_ROWS = 250_000
"""Maximum number of rows, over all graphs, that a baseline is fitted to: about a gigabyte."""


def rows_of_each(wanted: int, graphs: int) -> int:
    """Return the number of rows of each graph that a baseline is fitted to: `wanted`, but at most `MAX_ROWS` in all."""
    return max(2, min(wanted, MAX_ROWS // max(1, graphs)))


class Candidate(NamedTuple):
    """A fitted predictor; the candidate that is best on the validation graphs is kept."""

    predictor: Predictor
    epoch: int = 1  # number in the history, increasing
    steps: int = 1  # trees, or iterations of a solver; 1 for a rule
    train_loss: float | None = None  # None for a rule


@dataclass(frozen=True, eq=False)
class Fit:
    """Candidates, the time of a step, None for a rule, and all trees where each candidate is the first of them."""

    candidates: Sequence[Candidate]
    step_seconds: float | None = None
    trees: Trees | None = None

    def scores(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score distinct configurations by each candidate, (configurations, candidates) float64, larger = slower."""
        if self.trees is not None:
            return self.trees.staged(graph.rows(rows))[:, [candidate.steps for candidate in self.candidates]]
        return np.stack([candidate.predictor.score(graph, rows) for candidate in self.candidates], axis=1)
