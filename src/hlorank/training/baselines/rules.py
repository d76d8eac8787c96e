"""Baselines that look at no runtime: chance, and how far a configuration is from the default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.linear import Linear
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, pooled_columns
from hlorank.models.baselines.predictor import Predictor
from hlorank.models.baselines.random_ranker import RandomRanker
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit


def random_scores(store: FeatureStore, names: Sequence[str], config: Config) -> Fit:  # noqa: ARG001 - it learns nothing
    """Scores drawn from the seed."""
    return _rule(RandomRanker(np.array([config.seed], dtype=np.int64)))


def changed_share(store: FeatureStore, names: Sequence[str], config: Config) -> Fit:  # noqa: ARG001 - it learns nothing
    """The share of configurable nodes whose layout is not the usual one: the default configuration ranks first."""
    sizes = input_sizes(store.spec)
    return _rule(Linear.of_column(changed_column(sizes), pooled_columns(sizes)))


def _rule(predictor: Predictor) -> Fit:
    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return predictor.score(graph, rows)[:, None]

    return Fit([Candidate(predictor, epoch=1, steps=1, train_loss=None)], scores, rows=0, step_seconds=None)
