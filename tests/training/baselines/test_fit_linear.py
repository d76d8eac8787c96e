"""Fits of weights: the pairs that are drawn, weights at the minimum of the loss, and those of a known machine."""

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
from hlorank.models.baselines.predictors import Analytical, Linear
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.fit_linear import draw_differences, draw_pairs, fit_analytical, fit_linear

Settings = Callable[..., Config]
StoreOf = Callable[[Config], FeatureStore]


def test_all_pairs_of_different_labels_are_drawn() -> None:
    labels = np.array([3.0, 1, 3, 2])
    pairs = np.stack(draw_pairs(np.random.default_rng(0), labels, 4000))
    found, counts = np.unique(pairs, axis=1, return_counts=True)
    assert found.T.tolist() == [[1, 0], [1, 2], [1, 3], [3, 0], [3, 2]]
    # The first of a pair is uniform, the second uniform among those with another label.
    shares = np.array([1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3 + 1 / 3, 1 / 2 + 1 / 3, 1 / 2 + 1 / 3]) / 4
    np.testing.assert_allclose(counts / 4000, shares, atol=0.03)


@pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])
def test_differences_are_those_of_a_graph(
    collection: str, small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(collection=collection, baseline__pairs_per_graph=40)
    store, sizes = store_of(config), input_sizes(store_of(config).spec)
    names = store.trainable("train")
    differences = draw_differences(store, names, config.baseline.pairs_per_graph, config.seed)
    assert differences.shape[0] == 40 * len(names)
    monkeypatch.setattr("hlorank.training.baselines.candidates.MAX_ROWS", 7 * len(names))
    assert len(draw_differences(store, names, config.baseline.pairs_per_graph, config.seed)) == 7 * len(names)
    of_graph = 1 + sizes.opcodes + sizes.node_columns
    np.testing.assert_array_equal(differences[:, :of_graph], 0)
    assert differences[:, of_graph:].any(axis=1).mean() > 0.5
    graph = store.open("train", names[0])
    rows, labels = graph.targets()
    x = PooledGraph(graph, sizes).rows(rows).astype(np.float64)
    slower = labels[:, None] > labels
    possible = (x[:, None] - x)[slower]
    for difference in differences[:3]:
        assert (possible == difference).all(axis=1).any()


def test_weights_are_at_the_minimum(small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__strengths=[0.3, 0.01], baseline__pairs_per_graph=60)
    store = store_of(config)
    names = store.trainable("train")
    fit = fit_linear(store, names, config.baseline, config.seed)
    differences = draw_differences(store, names, config.baseline.pairs_per_graph, config.seed)
    assert [candidate.epoch for candidate in fit.candidates] == [1, 2]
    constant = ~differences.any(axis=0)
    for candidate, strength in zip(fit.candidates, config.baseline.strengths, strict=True):
        linear = cast("Linear", candidate.predictor)
        x = differences / linear.scale
        np.testing.assert_allclose(np.mean(x**2, axis=0), ~constant)
        np.testing.assert_array_equal(linear.weight[constant], 0)

        def loss(weight: np.ndarray, x: np.ndarray = x) -> float:
            return float(np.logaddexp(0, -(x @ weight)).mean())

        def objective(weight: np.ndarray, strength: float = strength) -> float:
            return loss(weight) + strength / 2 * float(weight @ weight)

        assert candidate.train_loss == pytest.approx(loss(linear.weight))
        assert candidate.train_loss < np.log(2)
        slope = strength * linear.weight - (x / (1 + np.exp(x @ linear.weight))[:, None]).mean(axis=0)
        np.testing.assert_allclose(slope, 0, atol=1e-3)
        few = minimize(objective, linear.weight, method="L-BFGS-B", options={"maxiter": 3})
        assert objective(linear.weight) == pytest.approx(few.fun, abs=1e-4)
    assert fit.candidates[0].train_loss > fit.candidates[1].train_loss  # type: ignore[operator] # both have one


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
