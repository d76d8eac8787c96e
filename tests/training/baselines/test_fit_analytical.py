"""The analytical model: weights at the constrained minimum, and those of a known machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from scipy.optimize import minimize

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Analytical
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.fit_analytical import fit_analytical

Settings = Callable[..., Config]
StoreOf = Callable[[Config], FeatureStore]


def test_weights_are_at_the_constrained_minimum(small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__strengths=[0.3, 0.01])
    store = store_of(config)
    names = store.trainable("train")
    fit = fit_analytical(store, names, config.baseline, config.seed)
    parts = []
    for name in names:
        graph = store.open("train", name)
        rows, labels = graph.targets()
        system = np.column_stack([PooledGraph(graph, input_sizes(store.spec)).copied(rows), labels])
        parts.append((system - system.mean(axis=0)) / labels.std())
    x, y = np.concatenate(parts)[:, :-1], np.concatenate(parts)[:, -1]
    scale = np.sqrt(np.mean(x**2, axis=0))
    used = scale > 0
    for candidate, strength in zip(fit.candidates, config.baseline.strengths, strict=True):
        weight = cast("Analytical", candidate.predictor).weight
        assert weight.shape == (COPY_COLUMNS,)
        np.testing.assert_array_equal(weight[~used], 0)
        assert candidate.train_loss == pytest.approx(np.mean((y - x @ weight) ** 2))

        def objective(scaled: np.ndarray, strength: float = strength) -> float:
            return float(np.mean((y - x[:, used] / scale[used] @ scaled) ** 2) + strength * scaled @ scaled)

        start = (weight * scale)[used]
        assert (start >= 0).all()
        assert start.any()
        best = minimize(objective, start, method="L-BFGS-B", bounds=[(0, None)] * len(start))
        assert objective(start) == pytest.approx(best.fun, abs=1e-6)
    assert fit.candidates[0].train_loss > fit.candidates[1].train_loss  # type: ignore[operator] # both have one


def test_the_weights_of_a_machine_are_found(
    small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runtimes of a machine that takes 2 ns for each byte inside, and 5 ns for all else that is copied."""
    config = small(baseline__strengths=[1e-9])
    store = store_of(config)
    sizes, true = input_sizes(store.spec), np.repeat([5.0, 5, 2, 2, 5], COPY_COLUMNS // 5)

    def targets(graph: GraphFeatures) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(graph.distinct)
        return rows, 1e6 + PooledGraph(graph, sizes).copied(rows) @ true

    monkeypatch.setattr(GraphFeatures, "targets", targets)
    (candidate,) = fit_analytical(store, store.trainable("train"), config.baseline, config.seed).candidates
    graph = store.open("valid", store.graphs("valid")[0])
    rows, labels = targets(graph)
    scores = candidate.predictor.score(PooledGraph(graph, sizes), rows)
    np.testing.assert_allclose(scores - scores[0], labels - labels[0], rtol=0.02, atol=0.02 * labels.std())
