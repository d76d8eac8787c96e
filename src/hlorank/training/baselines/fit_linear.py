"""Fits of weights: pairwise linear ranking of pooled features, and the time of copies."""

import logging
import time
from collections.abc import Sequence

import numpy as np

from hlorank.config import BaselineConfig
from hlorank.data.graph import Int64
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import Float64
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit, rows_of_each
from hlorank.training.sampling import Stream, generator

log = logging.getLogger(__name__)

_PRIOR_ROWS = 30_000  # a hundred graphs of the 300 rows that are read of each


def fit_linear(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:
    """Fit weights to pairs of configurations of training graphs, with a candidate for each of `baseline.strengths`.

    Herbrich, Graepel and Obermayer, "Large Margin Rank Boundaries for Ordinal Regression" (2000), with the logistic
    loss instead of the hinge. A candidate minimizes mean(log(1 + exp(-w . (slower - faster) / scale))) + strength / 2
    |w|^2. The scale of a column is the root mean square of its differences, so that a column which never differs within
    a graph has no weight. Steps are iterations of the solver, an epoch is the number of a strength, and the loss is the
    mean above.
    """
    from sklearn.linear_model import LogisticRegression

    signed = draw_differences(store, names, settings.pairs_per_graph, seed)
    scale = np.sqrt(np.einsum("pc,pc->c", signed, signed) / len(signed))
    scale[scale == 0] = 1
    # The classifier needs two classes: every second difference is negated.
    sign = np.where(np.arange(len(signed)) % 2, -1, 1)
    signed *= sign[:, None] / scale
    log.info("fitting weights of %d strengths to %d pairs of %d columns", len(settings.strengths), *signed.shape)
    candidates, start = list[Candidate](), time.perf_counter()
    for number, strength in enumerate(settings.strengths, 1):
        # Newton's method reaches the minimum in about five iterations for any strength; lbfgs may stop earlier.
        classifier = LogisticRegression(C=1 / (strength * len(sign)), fit_intercept=False, solver="newton-cholesky")
        classifier.fit(signed, sign)
        weight = classifier.coef_[0]
        loss = float(np.logaddexp(0, -sign * (signed @ weight)).mean())
        candidates.append(Candidate(Linear(weight, scale), number, int(classifier.n_iter_[0]), loss))
    return Fit(candidates, (time.perf_counter() - start) / sum(candidate.steps for candidate in candidates))


def draw_differences(store: FeatureStore, names: Sequence[str], pairs: int, seed: int) -> Float64:
    """Draw `pairs` of each graph; return the difference of pooled features, slower minus faster: (all pairs, columns).

    The first configuration of a pair is drawn uniformly, the second uniformly from configurations with another runtime.
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


def draw_pairs(rng: np.random.Generator, labels: Float64, count: int) -> tuple[Int64, Int64]:
    """Draw pairs of different labels with replacement: (count,) indices of the lower ones, and of the higher ones."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    first = rng.integers(len(labels), size=count)
    low, high = (np.searchsorted(ordered, labels[first], side) for side in ("left", "right"))
    other = rng.integers(len(labels) - (high - low))  # positions among all other labels
    second = order[np.where(other < low, other, other + high - low)]
    lower = labels[first] < labels[second]
    return np.where(lower, first, second), np.where(lower, second, first)


def fit_analytical(
    store: FeatureStore, names: Sequence[str], settings: BaselineConfig, _: int, prior: Float64 | None = None
) -> Fit:
    """Fit the weights of costs to training graphs, with a candidate for each of `baseline.strengths`.

    Runtimes are sums of the times that layouts cost and of what no layout changes. With x the costs and t the runtime
    of a configuration, less their means over the graph, and s the standard deviation of t there, a candidate minimizes
    mean(((t - w . x) / s)^2) + strength |w scale|^2 for w >= 0 (Lawson and Hanson, "Solving Least Squares Problems",
    1974); the scale of a column is the root mean square of x / s. An epoch is the number of a strength, the loss is the
    mean above, and a step is a solution. If all weights would be 0, all are 1. Of a graph with too many configurations,
    evenly spaced rows are read.

    With the weights `prior` of another model the penalty is that of w - prior, as large as for `_PRIOR_ROWS` rows.
    """
    from scipy.optimize import nnls

    most = rows_of_each(settings.rows_per_graph, len(names))
    system = np.concatenate([_equations(store, name, most) for name in names])
    scale = np.sqrt(np.mean(system**2, axis=0))
    scale[scale == 0] = 1
    scale[-1] = 1
    log.info("fitting weights of %d strengths to %d rows", len(settings.strengths), len(system))
    candidates, columns, start = list[Candidate](), system.shape[1] - 1, time.perf_counter()
    # The triangle of a QR decomposition has the same sums of squares.
    triangle = np.asarray(np.linalg.qr(system / scale, mode="r"))
    center, rows = (np.zeros(columns), len(system)) if prior is None else (prior * scale[:-1], _PRIOR_ROWS)
    for number, strength in enumerate(settings.strengths, 1):
        penalty = np.sqrt(strength * rows)
        left = np.concatenate([triangle[:, :-1], penalty * np.eye(columns)])
        weight = nnls(left, np.append(triangle[:, -1], penalty * center))[0]
        weight = weight if weight.any() else scale[:-1]  # equal weights still rank
        loss = float(np.mean((system[:, -1] - (system[:, :-1] / scale[:-1]) @ weight) ** 2))
        candidates.append(Candidate(Analytical(weight / scale[:-1]), number, 1, loss))
    return Fit(candidates, (time.perf_counter() - start) / len(candidates))


def _equations(store: FeatureStore, name: str, most: int) -> Float64:
    """Return x / s and t / s of at most `most` configurations of a graph: (rows, `cost_columns` + 1) float64."""
    graph = store.open("train", name)
    rows, labels = graph.targets()
    read = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)
    costs = PooledGraph(graph, input_sizes(store.spec)).costs(rows[read])
    system = np.column_stack([costs, labels[read]])
    return np.asarray((system - system.mean(axis=0)) / labels.std())
