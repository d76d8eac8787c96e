"""Gradient boosting with a ranking objective: LightGBM's lambdarank and XGBoost's rank:pairwise.

Burges, "From RankNet to LambdaRank to LambdaMART: An Overview" (Microsoft Research, 2010): trees are fitted to the
gradients of a loss on pairs of configurations of one graph, so that only their order counts. Both libraries divide the
gradients of a graph by the sum over its pairs, s, and multiply them by log2(1 + s): graphs have nearly equal weights
whatever their number of configurations. Both belong to the extra `rivals`. What they fit is kept as `Trees`, which
score without them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hlorank.config import BaselineConfig, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.trees import Trees
from hlorank.training.baselines.candidates import Fit
from hlorank.training.baselines.fit_trees import Sample, draw_sample, fit_of

log = logging.getLogger(__name__)

_LIGHTGBM_MAX_ROWS = 10_000  # of a group, by its own limit
_CHECKED_ROWS = 1024


def check_library(name: str) -> None:
    """Check that the library of a method is installed.

    Args:
        name: the name of the module, which is also that of the method.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec(name) is None:
        raise ConfigError(
            f"method={name}: the library is not installed; pip install 'hlorank[rivals]', or set method to "
            "gradient_boosting, which needs no extra"
        )


def fit_lightgbm(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit trees with LightGBM's lambdarank, with the first 1, 2, ... trees as candidates, at most 50 of them.

    The gain of a grade is the grade, and all pairs count: by default LightGBM ranks documents, of which only the first
    30 are read. Steps and epochs are trees; the loss is 1 - Kendall tau.

    Args:
        store: the features of the collection.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: the seed of the sample and of LightGBM.

    Raises:
        ConfigError: `settings.rows_per_graph` is above LightGBM's limit.
    """
    import lightgbm

    if settings.rows_per_graph > _LIGHTGBM_MAX_ROWS:
        raise ConfigError(
            f"baseline.rows_per_graph={settings.rows_per_graph}: method=lightgbm takes at most {_LIGHTGBM_MAX_ROWS}"
        )
    parameters = {
        "objective": "lambdarank",
        "label_gain": list(range(settings.grades)),
        "lambdarank_truncation_level": settings.rows_per_graph,
        "lambdarank_norm": True,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.leaves,
        "min_data_in_leaf": settings.min_leaf,
        "lambda_l2": settings.l2,
        "feature_fraction": settings.columns,
        "use_missing": False,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,  # otherwise a measurement of time chooses
        "verbosity": -1,
    }

    def fit(sample: Sample, grade: NDArray[np.int64]) -> tuple[Trees, NDArray[np.float64]]:
        data = lightgbm.Dataset(sample.x, grade, group=sample.counts, params=parameters)
        booster = lightgbm.train(parameters, data, settings.iterations)
        trees = _joined([_lightgbm_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]])
        return trees, booster.predict(sample.x[:_CHECKED_ROWS])

    return _fit(fit, store, names, settings, seed)


def fit_xgboost(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit trees with XGBoost's rank:pairwise, with the first 1, 2, ... trees as candidates, at most 50 of them.

    All pairs count. Steps and epochs are trees; the loss is 1 - Kendall tau.

    Args:
        store: the features of the collection.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: the seed of the sample and of XGBoost.
    """
    import xgboost

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

    def fit(sample: Sample, grade: NDArray[np.int64]) -> tuple[Trees, NDArray[np.float64]]:
        data = xgboost.QuantileDMatrix(sample.x, grade, group=sample.counts)
        booster = xgboost.train(parameters, data, settings.iterations)
        model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
        return _joined(map(_xgboost_tree, model["trees"])), booster.inplace_predict(sample.x[:_CHECKED_ROWS])

    return _fit(fit, store, names, settings, seed)


def _fit(
    library: Callable[[Sample, NDArray[np.int64]], tuple[Trees, NDArray[np.float64]]],
    store: FeatureStore,
    names: Sequence[str],
    settings: BaselineConfig,
    seed: int,
) -> Fit:
    """Fit trees to the sample.

    Args:
        library: function of the sample and its grades to the fitted trees and the library's own scores, larger =
            faster, of the first rows.
        store: arguments of a fit, as are the next three.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: the seed.

    Raises:
        RuntimeError: the trees do not score as the library does.
    """
    sample = draw_sample(store, names, settings.rows_per_graph, seed)
    grade = np.concatenate([grades(sample.y[rows], settings.grades) for rows in sample.graphs])
    log.info("fitting %d trees to %d rows of %d columns", settings.iterations, *sample.x.shape)
    start = time.perf_counter()
    trees, scores = library(sample, grade)
    seconds = (time.perf_counter() - start) / settings.iterations
    # Sums of float32 in XGBoost, of float64 in Trees.
    if not np.allclose(trees.staged(sample.x[: len(scores)])[:, -1], -scores, rtol=1e-4, atol=1e-4):
        raise RuntimeError("trees do not score as their library does: install the version of constraints.txt")
    return fit_of(trees, sample, _tau_loss, seconds)


def grades(y: NDArray[np.float64], levels: int) -> NDArray[np.int64]:
    """Return the relevance of the configurations of a graph: 0 for the slowest, `levels` - 1 for the fastest.

    Grades are quantiles, as Kendall tau counts pairs by their order alone, and as the noise of runtimes, the other
    natural width, is not known for every collection. Pairs within a grade are not trained on.

    Args:
        y: (configurations,), runtimes in any unit that keeps their order.
        levels: number of grades.

    Returns:
        (configurations,) int64, equal for equal runtimes.
    """
    slower = (len(y) - rankdata(y) + 0.5) / len(y)  # share of the configurations, in (0, 1)
    return (levels * slower).astype(np.int64)


def _tau_loss(scores: NDArray[np.float64], y: NDArray[np.float64]) -> list[float]:
    return [1 - kendall_tau(score, y) for score in scores.T]


class _Nodes(NamedTuple):
    """Nodes of one tree, children after their parent: the fields of `Trees` by their names, as lists."""

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]


def _lightgbm_tree(root: Mapping[str, Any]) -> _Nodes:
    """Return the nodes of a tree as LightGBM dumps it: nested, with `x <= threshold` on the left."""
    nodes = _Nodes([], [], [], [], [])
    waiting: list[tuple[Mapping[str, Any], list[int] | None, int]] = [(root, None, 0)]
    while waiting:
        node, side, parent = waiting.pop()
        own = len(nodes.value)
        if side is not None:
            side[parent] = own
        inner = "split_feature" in node
        nodes.feature.append(node["split_feature"] if inner else 0)
        nodes.threshold.append(node["threshold"] if inner else 0.0)
        nodes.left.append(own)
        nodes.right.append(own)
        nodes.value.append(0.0 if inner else -node["leaf_value"])
        if inner:
            waiting += [(node["right_child"], nodes.right, own), (node["left_child"], nodes.left, own)]
    return nodes


def _xgboost_tree(tree: Mapping[str, Any]) -> _Nodes:
    """Return the nodes of a tree as XGBoost saves it: arrays, with float32 `x < threshold` on the left."""
    left, right = tree["left_children"], tree["right_children"]
    leaf = [child < 0 for child in left]
    condition = np.array(tree["split_conditions"], dtype=np.float32)  # of a leaf its value
    below = np.nextafter(condition, np.float32(-np.inf)).tolist()  # x < t is x <= the number before t
    return _Nodes(
        feature=[0 if end else one for end, one in zip(leaf, tree["split_indices"], strict=True)],
        threshold=[0.0 if end else one for end, one in zip(leaf, below, strict=True)],
        left=[own if leaf[own] else child for own, child in enumerate(left)],
        right=[own if leaf[own] else child for own, child in enumerate(right)],
        value=[-one if end else 0.0 for end, one in zip(leaf, condition.tolist(), strict=True)],
    )


def _joined(trees: Sequence[_Nodes] | Iterator[_Nodes]) -> Trees:
    """Join trees, whose nodes are numbered from 0, into one array of nodes."""
    each = list(trees)
    counts = np.array([len(tree.value) for tree in each])
    first = np.cumsum(counts) - counts
    offset = np.repeat(first, counts)

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(tree, name) for tree in each])

    return Trees(
        root=first.astype(np.int32),
        feature=joined("feature").astype(np.int32),
        threshold=joined("threshold").astype(np.float64),
        left=(offset + joined("left")).astype(np.int32),
        right=(offset + joined("right")).astype(np.int32),
        value=joined("value").astype(np.float64),
        base=np.zeros(1),
    )
