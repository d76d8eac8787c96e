"""Boosted trees: fitted to log runtimes by scikit-learn, or to the order of pairs by XGBoost, and kept as arrays."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from hlorank.config import BaselineConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit, rows_of_each
from hlorank.training.sampling import Stream, generator

log = logging.getLogger(__name__)

_MAX_CANDIDATES = 50
_ROWS_AT_ONCE = 1024

Loss = Callable[[NDArray[np.float64], NDArray[np.float64]], Sequence[float] | NDArray[np.float64]]
"""Function of (rows, candidates) scores and the (rows,) targets `Sample.y` of one graph to the candidates' losses."""


class Sample(NamedTuple):
    """Training rows of the trees, graph after graph."""

    x: NDArray[np.float32]  # (rows, columns), pooled features
    y: NDArray[np.float64]  # (rows,), log runtimes, standardized within each graph: mean 0, standard deviation 1
    counts: NDArray[np.int64]  # (graphs,), rows of each graph

    @property
    def weight(self) -> NDArray[np.float64]:
        """Weights of the rows, (rows,) float64: 1 on average, and each graph has the same sum."""
        weights: NDArray[np.float64] = np.repeat(self.counts.mean() / self.counts, self.counts)
        return weights

    def split(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the rows of each graph."""
        return np.split(rows, np.cumsum(self.counts)[:-1])


def fit_trees(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit trees with scikit-learn, with the first 1, 2, ... trees as candidates, at most 50 of them.

    Steps and epochs are trees; the loss is the mean squared error of log runtimes standardized within each graph.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    sample = draw_sample(store, names, settings.rows_per_graph, seed)
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
    check_trees(trees, sample.x[:_ROWS_AT_ONCE], regressor.predict(sample.x[:_ROWS_AT_ONCE]), 0.0)
    return fit_of(trees, sample, lambda scores, y: np.mean((scores - y[:, None]) ** 2, axis=0), seconds)


def fit_xgboost(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit trees with XGBoost's rank:pairwise, with the first 1, 2, ... trees as candidates, at most 50 of them.

    Burges, "From RankNet to LambdaRank to LambdaMART: An Overview" (Microsoft Research, 2010): trees are fitted to the
    gradients of a loss on all pairs of configurations of one graph, so that only their order counts. The gradients of
    a graph are divided by the sum over its pairs, s, and multiplied by log2(1 + s): graphs have nearly equal weights.
    Steps and epochs are trees; the loss is 1 - Kendall tau.
    """
    import xgboost

    threadpool_limits(torch.get_num_threads())  # of the OpenMP that it has just loaded
    parameters = {
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": settings.rows_per_graph,
        "lambdarank_normalization": True,
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_depth": 0,
        "max_leaves": settings.leaves,
        "learning_rate": settings.learning_rate,
        "min_child_weight": settings.min_hessian,
        "reg_lambda": settings.l2,
        "colsample_bytree": settings.columns,
        "base_score": 0.0,
        "seed": seed,
    }
    sample = draw_sample(store, names, settings.rows_per_graph, seed)
    grade = np.concatenate([grades(y, settings.grades) for y in sample.split(sample.y)])
    start = time.perf_counter()
    data = xgboost.QuantileDMatrix(sample.x, grade, group=sample.counts)
    booster = xgboost.train(parameters, data, settings.iterations)
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
    trees = trees_of_xgboost(model["trees"])
    seconds = (time.perf_counter() - start) / settings.iterations
    x = sample.x[:_ROWS_AT_ONCE]
    check_trees(trees, x, -booster.inplace_predict(x), 1e-4)  # sums of float32 in XGBoost
    return fit_of(trees, sample, lambda scores, y: [1 - kendall_tau(score, y) for score in scores.T], seconds)


def grades(y: NDArray[np.float64], levels: int) -> NDArray[np.int64]:
    """Return the relevance of the runtimes of a graph, (configurations,): 0 for the slowest, `levels` - 1 the fastest.

    Grades are quantiles, as Kendall tau counts pairs by their order alone, and as the noise of runtimes, the other
    natural width, is not known for every collection. Pairs within a grade are not trained on.
    """
    from scipy.stats import rankdata

    slower = (len(y) - rankdata(y) + 0.5) / len(y)  # share of the configurations, in (0, 1)
    return (levels * slower).astype(np.int64)


def fit_of(trees: Trees, sample: Sample, loss: Loss, step_seconds: float) -> Fit:
    """Return the first 1, 2, ... trees as candidates; the loss of a candidate is its mean over the graphs."""
    fitted = len(trees.root)
    counts = np.unique(np.linspace(1, fitted, min(fitted, _MAX_CANDIDATES)).round().astype(np.int64))
    losses = np.zeros(len(counts))
    for x, y in zip(sample.split(sample.x), sample.split(sample.y), strict=True):
        parts = np.split(x, range(_ROWS_AT_ONCE, len(x), _ROWS_AT_ONCE))
        losses += loss(np.concatenate([trees.staged(part)[:, counts] for part in parts]), y)
    means = (losses / len(sample.counts)).tolist()
    candidates = [Candidate(trees.first(n), n, n, mean) for n, mean in zip(counts.tolist(), means, strict=True)]
    return Fit(candidates, step_seconds, trees)


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
    sample = Sample(np.concatenate(xs), np.concatenate(ys), np.array([len(y) for y in ys], dtype=np.int64))
    log.info("fitting trees to %d rows of %d columns", *sample.x.shape)
    return sample


def trees_of(regressor: Any) -> Trees:
    """Return the trees of a fitted regressor without categorical features or missing values.

    scikit-learn has no public access to the nodes of a histogram gradient boosting, so this function, and no other,
    reads two private attributes; hence the upper bound of its version in pyproject.toml. `check_trees` compares the
    result with the public `predict`, so that a change of these attributes cannot give wrong scores.
    """
    each = [predictor.nodes for (predictor,) in regressor._predictors]
    nodes = np.concatenate(each)
    leaf, base = nodes["is_leaf"].astype(bool), regressor._baseline_prediction.ravel()
    compared = nodes["feature_idx"], nodes["num_threshold"]
    return _trees([*map(len, each)], leaf, *compared, nodes["left"], nodes["right"], nodes["value"], base)


def trees_of_xgboost(trees: Sequence[dict[str, Any]]) -> Trees:
    """Return trees as XGBoost saves them: arrays, with float32 `x < threshold` on the left, and larger = faster."""

    def field(name: str, dtype: type = np.int64) -> NDArray[Any]:
        return np.concatenate([np.array(tree[name], dtype=dtype) for tree in trees])

    left, condition = field("left_children"), field("split_conditions", np.float32)  # of a leaf its value
    below = np.nextafter(condition, np.float32(-np.inf))  # x < t is x <= the number before t
    fields = field("split_indices"), below, left, field("right_children"), -condition, np.zeros(1)
    return _trees([len(tree["left_children"]) for tree in trees], left < 0, *fields)


def _trees(
    counts: Sequence[int],
    leaf: NDArray[np.bool_],
    feature: NDArray[Any],
    threshold: NDArray[Any],
    left: NDArray[Any],
    right: NDArray[Any],
    value: NDArray[Any],
    base: NDArray[np.float64],
) -> Trees:
    """Concatenate trees with these numbers of nodes, which are numbered from 0 in each tree."""
    first, own = np.cumsum(counts) - counts, np.arange(len(leaf))
    offset = np.repeat(first, counts)
    return Trees(
        root=first.astype(np.int32),
        feature=np.where(leaf, 0, feature).astype(np.int32),
        threshold=np.where(leaf, 0.0, threshold).astype(np.float64),
        left=np.where(leaf, own, offset + left).astype(np.int32),
        right=np.where(leaf, own, offset + right).astype(np.int32),
        value=np.where(leaf, value, 0.0).astype(np.float64),
        base=base,
    )


def check_trees(trees: Trees, x: NDArray[np.float32], scores: ArrayLike, tolerance: float) -> None:
    """Check that trees score rows as their library does."""
    if not np.allclose(trees.staged(x)[:, -1], scores, rtol=tolerance, atol=tolerance):
        raise RuntimeError("trees do not score as their library does: install the version of constraints.txt")
