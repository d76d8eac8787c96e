"""Pairwise linear ranking: which of two configurations of a graph is slower, by the difference of their features.

Herbrich, Graepel and Obermayer, "Large Margin Rank Boundaries for Ordinal Regression" (2000), with the logistic loss in
the place of the hinge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.linear import Linear
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit
from hlorank.training.random_streams import Stream, generator

log = logging.getLogger(__name__)


def fit_linear(store: FeatureStore, names: Sequence[str], config: Config) -> Fit:
    """Fits weights to pairs of configurations of these graphs of train; the candidates are `baseline.strengths`.

    Each minimizes mean(log(1 + exp(-w . (slower - faster) / scale))) + strength / 2 |w|^2. The scale of a column is the
    root mean square of its differences, so that a column that never differs within a graph has no weight. Steps are
    iterations of the solver, an epoch is the number of a strength, the loss is the mean above.
    """
    turned = draw_differences(store, names, config)
    scale = np.sqrt(np.einsum("pc,pc->c", turned, turned) / len(turned))
    scale[scale == 0] = 1
    # The classifier wants two classes: every second pair is turned round.
    sign = np.where(np.arange(len(turned)) % 2, -1, 1)
    turned *= sign[:, None] / scale
    log.info("fitting weights of %d strengths to %d pairs of %d columns", len(config.baseline.strengths), *turned.shape)
    candidates = list[Candidate]()
    start = time.perf_counter()
    for number, strength in enumerate(config.baseline.strengths, 1):
        # Newton's method is at the minimum after about five iterations, whatever the strength; lbfgs may stop before.
        classifier = LogisticRegression(C=1 / (strength * len(sign)), fit_intercept=False, solver="newton-cholesky")
        classifier.fit(turned, sign)
        weight = classifier.coef_[0]
        loss = float(np.logaddexp(0, -sign * (turned @ weight)).mean())
        candidates.append(Candidate(Linear(weight, scale), number, int(classifier.n_iter_[0]), loss))
    seconds = (time.perf_counter() - start) / sum(candidate.steps for candidate in candidates)

    def scores(graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.stack([candidate.predictor.score(graph, rows) for candidate in candidates], axis=1)

    return Fit(candidates, scores, 2 * len(sign), seconds)


def draw_differences(store: FeatureStore, names: Sequence[str], config: Config) -> NDArray[np.float64]:
    """Pooled features of the slower configuration of a pair less those of the faster one.

    Of each of these graphs of train there are `baseline.pairs_per_graph` pairs, so that every graph weighs the same:
    each the first configuration drawn uniformly, the second uniformly from those of another runtime.

    Returns:
        (pairs, columns) float64.
    """
    sizes, pairs = input_sizes(store.spec), config.baseline.pairs_per_graph
    differences = np.empty((len(names) * pairs, pooled_columns(sizes)))
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        faster, slower = draw_pairs(generator(config.seed, Stream.LINEAR_RANKING, number), labels, pairs)
        used, place = np.unique(np.stack([faster, slower]), return_inverse=True)
        x = PooledGraph(graph, sizes).rows(rows[used]).astype(np.float64)
        differences[number * pairs : (number + 1) * pairs] = x[place[1]] - x[place[0]]
    return differences


def draw_pairs(
    rng: np.random.Generator, labels: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws pairs of different labels, of which there are at least two: (count,) the lower ones, (count,) the higher.

    A pair may be drawn twice.
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    first = rng.integers(len(labels), size=count)
    low, high = (np.searchsorted(ordered, labels[first], side) for side in ("left", "right"))
    other = rng.integers(len(labels) - (high - low))  # the places of all labels but this one
    second = order[np.where(other < low, other, other + high - low)]
    lower = labels[first] < labels[second]
    return np.where(lower, first, second), np.where(lower, second, first)
