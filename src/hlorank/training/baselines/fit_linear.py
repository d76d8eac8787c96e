"""Pairwise linear ranking: logistic regression on the differences between the features of two configurations.

Herbrich, Graepel and Obermayer, "Large Margin Rank Boundaries for Ordinal Regression" (2000), with the logistic loss
instead of the hinge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from hlorank.config import BaselineConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictors import Linear
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit, one_by_one, rows_of_each
from hlorank.training.sampling import Stream, generator

log = logging.getLogger(__name__)


def fit_linear(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit weights to pairs of configurations of training graphs, with a candidate for each of `baseline.strengths`.

    A candidate minimizes mean(log(1 + exp(-w . (slower - faster) / scale))) + strength / 2 |w|^2. The scale of a column
    is the root mean square of its differences, so that a column which never differs within a graph has no weight. Steps
    are iterations of the solver, an epoch is the number of a strength, and the loss is the mean above.

    Args:
        store: the features of the collection.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: the seed of the pairs.
    """
    signed = draw_differences(store, names, settings.pairs_per_graph, seed)
    scale = np.sqrt(np.einsum("pc,pc->c", signed, signed) / len(signed))
    scale[scale == 0] = 1
    # The classifier needs two classes: every second difference is negated.
    sign = np.where(np.arange(len(signed)) % 2, -1, 1)
    signed *= sign[:, None] / scale
    log.info("fitting weights of %d strengths to %d pairs of %d columns", len(settings.strengths), *signed.shape)
    candidates = list[Candidate]()
    start = time.perf_counter()
    for number, strength in enumerate(settings.strengths, 1):
        # Newton's method reaches the minimum in about five iterations for any strength; lbfgs may stop earlier.
        classifier = LogisticRegression(C=1 / (strength * len(sign)), fit_intercept=False, solver="newton-cholesky")
        classifier.fit(signed, sign)
        weight = classifier.coef_[0]
        loss = float(np.logaddexp(0, -sign * (signed @ weight)).mean())
        candidates.append(Candidate(Linear(weight, scale), number, int(classifier.n_iter_[0]), loss))
    seconds = (time.perf_counter() - start) / sum(candidate.steps for candidate in candidates)
    return one_by_one(candidates, seconds)


def draw_differences(store: FeatureStore, names: Sequence[str], pairs: int, seed: int) -> NDArray[np.float64]:
    """Draw pairs of configurations, and subtract the pooled features of the faster one from those of the slower one.

    The first configuration of a pair is drawn uniformly, the second uniformly from those with another runtime.

    Args:
        store: the features of the collection.
        names: graphs of train.
        pairs: number of pairs of each graph, so that all graphs have the same weight; fewer of each of many graphs.
        seed: the seed of the pairs.

    Returns:
        (pairs, columns) float64.
    """
    sizes = input_sizes(store.spec)
    pairs = rows_of_each(pairs, len(names))
    differences = np.empty((len(names) * pairs, pooled_columns(sizes)))
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        faster, slower = draw_pairs(generator(seed, Stream.LINEAR_RANKING, number), labels, pairs)
        used, place = np.unique(np.stack([faster, slower]), return_inverse=True)
        x = PooledGraph(graph, sizes).rows(rows[used]).astype(np.float64)
        differences[number * pairs : (number + 1) * pairs] = x[place[1]] - x[place[0]]
    return differences


def draw_pairs(
    rng: np.random.Generator, labels: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw pairs of different labels with replacement.

    Args:
        rng: the random generator.
        labels: (configurations,), at least two different ones.
        count: number of pairs.

    Returns:
        (count,) indices of the lower labels, and (count,) of the higher ones.
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    first = rng.integers(len(labels), size=count)
    low, high = (np.searchsorted(ordered, labels[first], side) for side in ("left", "right"))
    other = rng.integers(len(labels) - (high - low))  # positions among all labels but this one
    second = order[np.where(other < low, other, other + high - low)]
    lower = labels[first] < labels[second]
    return np.where(lower, first, second), np.where(lower, second, first)
