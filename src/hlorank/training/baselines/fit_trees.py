"""Gradient boosting: regression trees fitted to log runtimes, by scikit-learn."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.trees import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit
from hlorank.training.random_streams import Stream, generator

log = logging.getLogger(__name__)

_STAGES = 50  # numbers of trees that are tried, at most
_ROWS_AT_ONCE = 1024


class Sample(NamedTuple):
    """The rows that trees are fitted to.

    Attributes:
        x: (rows, columns) float32, pooled features.
        y: (rows,) float64, log runtimes, standardised within each graph: mean 0, standard deviation 1.
        weight: (rows,) float64, 1 on average; each graph has the same sum.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]


def fit_trees(store: FeatureStore, names: Sequence[str], config: Config) -> Fit:
    """Fits trees to these graphs of train; the candidates are the first 1, 2, ... of them, 50 numbers at most.

    Steps and epochs are trees, the loss is the mean squared error of runtimes standardised within each graph.
    """
    settings, sample = config.baseline, draw_sample(store, names, config)
    log.info("fitting %d trees to %d rows of %d columns", settings.iterations, *sample.x.shape)
    regressor = HistGradientBoostingRegressor(
        learning_rate=settings.learning_rate,
        max_iter=settings.iterations,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.min_leaf,
        l2_regularization=settings.l2,
        early_stopping=False,  # graphs are held out, not rows
        random_state=config.seed,
    )
    start = time.perf_counter()
    trees = trees_of(regressor.fit(sample.x, sample.y, sample.weight))
    seconds = (time.perf_counter() - start) / settings.iterations
    fitted = len(trees.root)
    counts = np.unique(np.linspace(1, fitted, min(fitted, _STAGES)).round().astype(np.int64))

    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return trees.staged(graph.rows(rows))[:, counts]  # one pass for all of them

    losses = _losses(trees, counts, sample).tolist()
    candidates = [Candidate(trees.first(n), n, n, loss) for n, loss in zip(counts.tolist(), losses, strict=True)]
    return Fit(candidates, scores, len(sample.x), seconds)


def draw_sample(store: FeatureStore, names: Sequence[str], config: Config) -> Sample:
    """At most `baseline.rows_per_graph` targets of each of these graphs of train."""
    sizes, most = input_sizes(store.spec), config.baseline.rows_per_graph
    xs, ys = [], []
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        logs = np.log(labels)
        rng = generator(config.seed, Stream.TREES, number)
        drawn = np.sort(rng.choice(len(rows), size=min(most, len(rows)), replace=False))
        xs.append(PooledGraph(graph, sizes).rows(rows[drawn]))
        ys.append((logs[drawn] - logs.mean()) / logs.std())
    counts = np.array([len(y) for y in ys])
    return Sample(np.concatenate(xs), np.concatenate(ys), np.repeat(counts.mean() / counts, counts))


def trees_of(regressor: HistGradientBoostingRegressor) -> Trees:
    """The trees of a fitted regressor without categories, on data without missing values.

    They lie in private attributes of scikit-learn, which are read here and nowhere else: as they are in 1.9.1.
    """
    trees = [predictor.nodes for (predictor,) in regressor._predictors]
    counts = np.array([len(nodes) for nodes in trees])
    first, nodes = np.cumsum(counts) - counts, np.concatenate(trees)
    own, offset, leaf = np.arange(len(nodes)), np.repeat(first, counts), nodes["is_leaf"].astype(bool)
    return Trees(
        root=first.astype(np.int32),
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
        threshold=np.where(leaf, 0.0, nodes["num_threshold"]),
        left=np.where(leaf, own, offset + nodes["left"]).astype(np.int32),
        right=np.where(leaf, own, offset + nodes["right"]).astype(np.int32),
        value=np.where(leaf, nodes["value"], 0.0),
        base=regressor._baseline_prediction.ravel(),
    )


def _losses(trees: Trees, counts: NDArray[np.int64], sample: Sample) -> NDArray[np.float64]:
    """(counts,) weighted mean squared errors of the first trees, for some numbers of them."""
    total = np.zeros(len(counts))
    for start in range(0, len(sample.x), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        error = trees.staged(sample.x[rows])[:, counts] - sample.y[rows, None]
        total += sample.weight[rows] @ error**2
    return total / len(sample.x)
