"""Results of fitting a baseline, and the baselines that need no fitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.config import BaselineConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, pooled_columns
from hlorank.models.baselines.predictors import Linear, Predictor, RandomRanker
from hlorank.models.serialization import input_sizes

MAX_ROWS = 250_000
"""Rows, over all graphs, that a baseline is fitted to at most: about a gigabyte, whatever the number of graphs."""


def rows_of_each(wanted: int, graphs: int) -> int:
    """Return how many rows of each graph a baseline is fitted to: as many as wanted, but `MAX_ROWS` over all."""
    return max(2, min(wanted, MAX_ROWS // max(1, graphs)))


class Candidate(NamedTuple):
    """A predictor among those of which the best on the validation graphs is kept.

    Attributes:
        epoch: its number in the history, increasing.
        steps: trees, or iterations of a solver; 1 for a rule.
        train_loss: None for a rule.
    """

    predictor: Predictor
    epoch: int
    steps: int
    train_loss: float | None


@dataclass(frozen=True, eq=False)
class Fit:
    """Candidates, and the cost of fitting them.

    Attributes:
        scores: function of a graph and distinct configurations to (configurations, candidates) float64, larger =
            slower.
        step_seconds: time of one step; None for a rule, which takes none.
    """

    candidates: Sequence[Candidate]
    scores: Callable[[PooledGraph, NDArray[np.int64]], NDArray[np.float64]]
    step_seconds: float | None


def random_scores(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:  # noqa: ARG001 - not fitted
    """Return random scores, drawn from the seed."""
    return _rule(RandomRanker(np.array([seed], dtype=np.int64)))


def changed_share(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:  # noqa: ARG001 - not fitted
    """Return the rank by configurable nodes with an unusual layout as score: the default configuration is first."""
    sizes = input_sizes(store.spec)
    return _rule(Linear.of_column(changed_column(sizes), pooled_columns(sizes)))


def _rule(predictor: Predictor) -> Fit:
    return one_by_one([Candidate(predictor, epoch=1, steps=1, train_loss=None)], step_seconds=None)


def one_by_one(candidates: Sequence[Candidate], step_seconds: float | None) -> Fit:
    """Return candidates that share nothing, so that each scores by itself."""

    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.stack([candidate.predictor.score(graph, rows) for candidate in candidates], axis=1)

    return Fit(candidates, scores, step_seconds)
