"""Gradient boosting: regression trees fitted to log runtimes, by scikit-learn; the sample of all boosted trees."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
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
from hlorank.training.baselines.candidates import Candidate, Fit, rows_of_each
from hlorank.training.sampling import Stream, generator

log = logging.getLogger(__name__)

_MAX_CANDIDATES = 50
_ROWS_AT_ONCE = 1024


Loss = Callable[[NDArray[np.float64], NDArray[np.float64]], Sequence[float] | NDArray[np.float64]]
"""Function of (rows, candidates) scores and the (rows,) targets `Sample.y` of one graph to the candidates' losses."""


class Sample(NamedTuple):
    """Training rows of the trees, graph after graph.

    Attributes:
        x: (rows, columns) float32, pooled features.
        y: (rows,) float64, log runtimes, standardized within each graph: mean 0, standard deviation 1.
        counts: (graphs,) int64, rows of each graph.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def weight(self) -> NDArray[np.float64]:
        """Weights of the rows, (rows,) float64: 1 on average, and each graph has the same sum."""
        weights: NDArray[np.float64] = np.repeat(self.counts.mean() / self.counts, self.counts)
        return weights

    @property
    def graphs(self) -> Iterator[slice]:
        """The rows of each graph."""
        ends = np.cumsum(self.counts).tolist()
        return (slice(end - count, end) for end, count in zip(ends, self.counts.tolist(), strict=True))


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
    return fit_of(trees, sample, _squared_error, seconds)


def fit_of(trees: Trees, sample: Sample, loss: Loss, step_seconds: float) -> Fit:
    """Return the first 1, 2, ... of fitted trees as candidates, at most 50 of them.

    Args:
        trees: all trees, at least one.
        sample: the rows that they were fitted to.
        loss: the loss on one graph; that of a candidate is its mean over the graphs.
        step_seconds: time of one tree.
    """
    fitted = len(trees.root)
    counts = np.unique(np.linspace(1, fitted, min(fitted, _MAX_CANDIDATES)).round().astype(np.int64))

    def staged(x: NDArray[np.float32]) -> NDArray[np.float64]:
        return trees.staged(x)[:, counts]  # one pass for all candidates

    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return staged(graph.rows(rows))

    losses = np.zeros(len(counts))
    for rows in sample.graphs:
        starts = range(rows.start, rows.stop, _ROWS_AT_ONCE)
        parts = (sample.x[start : min(start + _ROWS_AT_ONCE, rows.stop)] for start in starts)
        losses += loss(np.concatenate([staged(x) for x in parts]), sample.y[rows])
    means = (losses / len(sample.counts)).tolist()
    candidates = [Candidate(trees.first(n), n, n, mean) for n, mean in zip(counts.tolist(), means, strict=True)]
    return Fit(candidates, scores, step_seconds)


def draw_sample(store: FeatureStore, names: Sequence[str], max_rows: int, seed: int) -> Sample:
    """Draw at most `max_rows` targets of each of the training graphs `names`, fewer of each of many graphs."""
    sizes = input_sizes(store.spec)
    most = rows_of_each(max_rows, len(names))
    xs, ys = [], []
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        logs = np.log(labels)
        rng = generator(seed, Stream.TREES, number)
        drawn = np.sort(rng.choice(len(rows), size=min(most, len(rows)), replace=False))
        xs.append(PooledGraph(graph, sizes).rows(rows[drawn]))
        ys.append((logs[drawn] - logs.mean()) / logs.std())
    return Sample(np.concatenate(xs), np.concatenate(ys), np.array([len(y) for y in ys], dtype=np.int64))


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


def _squared_error(scores: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the mean squared error of the scores (rows, candidates) for the targets (rows,): (candidates,)."""
    errors: NDArray[np.float64] = np.mean((scores - y[:, None]) ** 2, axis=0)
    return errors
