"""Gradient boosting: regression trees fitted to log runtimes, by scikit-learn."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank.config import BaselineConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.trees import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit
from hlorank.training.random_streams import Stream, generator

log = logging.getLogger(__name__)

_MAX_CANDIDATES = 50
_ROWS_AT_ONCE = 1024


class Sample(NamedTuple):
    """Training rows of the trees.

    Attributes:
        x: (rows, columns) float32, pooled features.
        y: (rows,) float64, log runtimes, standardized within each graph: mean 0, standard deviation 1.
        weight: (rows,) float64, 1 on average; each graph has the same sum.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]


def fit_trees(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit trees to training graphs, with the first 1, 2, ... trees as candidates, at most 50 of them.

    Steps and epochs are trees; the loss is the mean squared error of log runtimes standardized within each graph.

    Args:
        store: the features of the collection.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: the seed of the sample and of scikit-learn.
    """
    sample = draw_sample(store, names, settings.rows_per_graph, seed)
    log.info("fitting %d trees to %d rows of %d columns", settings.iterations, *sample.x.shape)
    regressor = HistGradientBoostingRegressor(
        learning_rate=settings.learning_rate,
        max_iter=settings.iterations,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.min_leaf,
        l2_regularization=settings.l2,
        early_stopping=False,  # the number of trees is chosen on validation graphs, not on held-out rows
        random_state=seed,
    )
    start = time.perf_counter()
    trees = trees_of(regressor.fit(sample.x, sample.y, sample.weight))
    seconds = (time.perf_counter() - start) / settings.iterations
    check_trees(trees, regressor, sample.x[:_ROWS_AT_ONCE])
    fitted = len(trees.root)
    counts = np.unique(np.linspace(1, fitted, min(fitted, _MAX_CANDIDATES)).round().astype(np.int64))

    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return trees.staged(graph.rows(rows))[:, counts]  # one pass for all candidates

    losses = _losses(trees, counts, sample).tolist()
    candidates = [Candidate(trees.first(n), n, n, loss) for n, loss in zip(counts.tolist(), losses, strict=True)]
    return Fit(candidates, scores, seconds)


def draw_sample(store: FeatureStore, names: Sequence[str], max_rows: int, seed: int) -> Sample:
    """Draw at most `max_rows` targets of each of the training graphs `names`."""
    sizes = input_sizes(store.spec)
    xs, ys = [], []
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        logs = np.log(labels)
        rng = generator(seed, Stream.TREES, number)
        drawn = np.sort(rng.choice(len(rows), size=min(max_rows, len(rows)), replace=False))
        xs.append(PooledGraph(graph, sizes).rows(rows[drawn]))
        ys.append((logs[drawn] - logs.mean()) / logs.std())
    counts = np.array([len(y) for y in ys])
    return Sample(np.concatenate(xs), np.concatenate(ys), np.repeat(counts.mean() / counts, counts))


def trees_of(regressor: HistGradientBoostingRegressor) -> Trees:
    """Return the trees of a fitted regressor without categorical features or missing values.

    scikit-learn has no public access to the nodes of a histogram gradient boosting, so this function, and no other,
    reads two private attributes; hence the upper bound of its version in pyproject.toml. `check_trees` compares the
    result with the public `predict`, so that a change of these attributes cannot give wrong scores.
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


def check_trees(trees: Trees, regressor: HistGradientBoostingRegressor, x: NDArray[np.float32]) -> None:
    """Check the result of `trees_of`.

    Raises:
        RuntimeError: the scores of some rows `x` are not those of scikit-learn.
    """
    if not np.array_equal(trees.staged(x)[:, -1], regressor.predict(x)):
        raise RuntimeError(
            f"trees_of does not fit scikit-learn {sklearn.__version__}: install the version of constraints.txt"
        )


def _losses(trees: Trees, counts: NDArray[np.int64], sample: Sample) -> NDArray[np.float64]:
    """Compute the weighted mean squared error of the first trees for each of some numbers of trees: (counts,)."""
    total = np.zeros(len(counts))
    for start in range(0, len(sample.x), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        error = trees.staged(sample.x[rows])[:, counts] - sample.y[rows, None]
        total += sample.weight[rows] @ error**2
    return total / len(sample.x)
