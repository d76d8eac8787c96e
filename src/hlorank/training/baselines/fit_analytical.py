"""An analytical cost model of copies, fitted to measured runtimes: least squares with weights of at least 0."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hlorank.config import BaselineConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Analytical
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit, one_by_one, rows_of_each

log = logging.getLogger(__name__)


def fit_analytical(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:  # noqa: ARG001 - nothing is drawn
    """Fit ns for a byte to training graphs, with a candidate for each of `baseline.strengths`.

    Runtimes are sums of the times of copies and of what no layout changes. With x the bytes and t the runtime of a
    configuration, less their means over the graph, and s the standard deviation of t there, a candidate minimizes
    mean(((t - w . x) / s)^2) + strength |w scale|^2 for w >= 0 (Lawson and Hanson, "Solving Least Squares Problems",
    1974); the scale of a column is the root mean square of x / s. An epoch is the number of a strength, the loss is the
    mean above, and a step one solution.

    Args:
        store: the features of the collection.
        names: graphs of train.
        settings: the settings of the baseline.
        seed: not used: of a graph with more than `settings.rows_per_graph` configurations, evenly spaced ones are read.
    """
    most = rows_of_each(settings.rows_per_graph, len(names))
    system = np.concatenate([_equations(store, name, most) for name in names])
    scale = np.sqrt(np.mean(system**2, axis=0))
    scale[scale == 0] = 1
    scale[-1] = 1
    log.info("fitting weights of %d strengths to %d rows", len(settings.strengths), len(system))
    candidates = list[Candidate]()
    start = time.perf_counter()
    # The triangle of a QR decomposition has the same sums of squares.
    triangle = np.asarray(np.linalg.qr(system / scale, mode="r"))
    for number, strength in enumerate(settings.strengths, 1):
        penalty = np.sqrt(strength * len(system)) * np.eye(COPY_COLUMNS)
        left = np.concatenate([triangle[:, :-1], penalty])
        weight, _ = nnls(left, np.append(triangle[:, -1], np.zeros(COPY_COLUMNS)))
        loss = float(np.mean((system[:, -1] - (system[:, :-1] / scale[:-1]) @ weight) ** 2))
        candidates.append(Candidate(Analytical(weight / scale[:-1]), number, 1, loss))
    seconds = (time.perf_counter() - start) / len(candidates)
    return one_by_one(candidates, seconds)


def _equations(store: FeatureStore, name: str, most: int) -> NDArray[np.float64]:
    """Return x / s and t / s of at most so many configurations of a graph: (rows, `COPY_COLUMNS` + 1) float64."""
    graph = store.open("train", name)
    rows, labels = graph.targets()
    read = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)
    copied = PooledGraph(graph, input_sizes(store.spec)).copied(rows[read])
    system = np.column_stack([copied, labels[read]])
    return np.asarray((system - system.mean(axis=0)) / labels.std())
