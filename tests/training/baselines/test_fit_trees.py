"""Boosted trees: the sample that they are fitted to, the order they learn, and the scores of their libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines import fit_trees as fit_trees_module
from hlorank.training.baselines.candidates import Fit
from hlorank.training.baselines.fit_trees import (
    Sample,
    check_trees,
    draw_sample,
    fit_trees,
    fit_xgboost,
    grades,
    trees_of,
)
from tests.training.baselines.conftest import needs_xgboost

Settings = Callable[..., Config]
StoreOf = Callable[[Config], FeatureStore]


def test_trees_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(3000, 7)), 2).astype(np.float32)  # many rows equal a threshold or nearly so
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + rng.normal(size=3000)
    regressor = HistGradientBoostingRegressor(max_iter=40, early_stopping=False, random_state=0)
    regressor.fit(x[:2000], y[:2000], rng.uniform(0.5, 2, 2000))
    trees = trees_of(regressor)
    trees.check(columns=7)
    check_trees(trees, x, regressor.predict(x), 0.0)
    with pytest.raises(RuntimeError):
        check_trees(trees.first(39), x, regressor.predict(x), 1e-4)
    staged = trees.staged(x)
    np.testing.assert_array_equal(staged[:, -1], regressor.predict(x))
    np.testing.assert_array_equal(staged[:, 1:], np.transpose(list(regressor.staged_predict(x))))


@pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])
def test_graphs_have_equal_weights(
    collection: str, small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(collection=collection, baseline__rows_per_graph=30)
    store = store_of(config)
    names = store.trainable("train")
    sample = draw_sample(store, names, config.baseline.rows_per_graph, config.seed)
    counts = [min(30, len(store.open("train", name).targets()[0])) for name in names]
    assert len(sample.x) == len(sample.y) == len(sample.weight) == sum(counts)
    assert sample.counts.tolist() == counts
    assert [*map(len, sample.split(sample.y))] == counts
    assert sample.weight.mean() == pytest.approx(1)
    sums = [weight.sum() for weight in np.split(sample.weight, np.cumsum(counts)[:-1])]
    assert sums == pytest.approx([sum(counts) / len(names)] * len(names))
    monkeypatch.setattr("hlorank.training.baselines.candidates.MAX_ROWS", 5 * len(names) + 1)
    assert draw_sample(store, names, config.baseline.rows_per_graph, config.seed).counts.tolist() == [5] * len(names)
    monkeypatch.undo()
    everything = draw_sample(store, names, 10**9, config.seed)
    counts = [len(store.open("train", name).targets()[0]) for name in names]
    for name, y in zip(names, np.split(everything.y, np.cumsum(counts)[:-1]), strict=True):
        assert (y.mean(), y.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
        assert kendall_tau(y, store.open("train", name).targets()[1]) == pytest.approx(1)


@pytest.mark.parametrize("fit_with", [fit_trees, pytest.param(fit_xgboost, marks=needs_xgboost)])
def test_candidates_are_the_first_trees(fit_with: Callable[..., Fit], small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__iterations=60, baseline__columns=0.5)
    store = store_of(config)
    names = store.trainable("train")
    fit = fit_with(store, names, config.baseline, config.seed)
    counts = [candidate.epoch for candidate in fit.candidates]
    assert (len(counts), counts[0], counts[-1]) == (50, 1, 60)  # not every number of trees is a candidate
    assert [candidate.steps for candidate in fit.candidates] == counts
    graph = PooledGraph(store.open("valid", store.graphs("valid")[0]), input_sizes(store.spec))
    rows = np.array([3, 0])
    each = np.stack([candidate.predictor.score(graph, rows) for candidate in fit.candidates], axis=1)
    np.testing.assert_array_equal(fit.scores(graph, rows), each)
    if fit_with is fit_trees:
        sample = draw_sample(store, names, config.baseline.rows_per_graph, config.seed)
        last = fit.candidates[-1]
        assert isinstance(last.predictor, Trees)
        error = last.predictor.staged(sample.x)[:, -1] - sample.y
        assert last.train_loss == pytest.approx(np.average(error**2, weights=sample.weight))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=40), st.integers(2, 40))
def test_faster_configurations_have_higher_grades(runtimes: list[int], levels: int) -> None:
    y = np.array(runtimes, dtype=np.float64)
    found = grades(y, levels)
    assert 0 <= found.min() <= found.max() < levels
    faster = y[:, None] < y
    assert (np.subtract.outer(found, found)[faster] >= 0).all()
    assert (np.subtract.outer(found, found)[y[:, None] == y] == 0).all()


def test_grades_are_quantiles() -> None:
    assert grades(np.array([5.0, 1, 2, 1000, 3, 4, 6, 7]), 4).tolist() == [1, 3, 3, 0, 2, 2, 1, 0]


@needs_xgboost
def test_xgboost_learns_an_order_within_graphs_and_its_trees_score_as_it_does(
    small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs differ in size and in the range of runtimes; many rows equal a threshold, and reach the same leaves."""
    xgboost, boosters = pytest.importorskip("xgboost"), list[Any]()
    rng, counts = np.random.default_rng(0), np.array([40, 300, 120, 60])
    x = np.round(rng.normal(size=(counts.sum(), 5)), 1).astype(np.float32)
    y = np.repeat([0, 100, -7, 3], counts) + np.repeat([1, 50, 0.1, 9], counts) * (x[:, 0] * x[:, 1] + np.sin(x[:, 2]))
    sample, train = Sample(x, y, counts), xgboost.train

    def keep(*given: Any) -> Any:
        boosters.append(train(*given))
        return boosters[-1]

    monkeypatch.setattr(xgboost, "train", keep)
    monkeypatch.setattr(fit_trees_module, "draw_sample", lambda *arguments: sample)
    config = small(baseline__iterations=60, baseline__learning_rate=0.3)
    fit = fit_xgboost(store_of(config), [], config.baseline, config.seed)
    trees = fit.candidates[-1].predictor
    assert isinstance(trees, Trees)
    trees.check(columns=5)
    staged = trees.staged(x)
    for count in (1, 2, 60):
        expected = -boosters[0].inplace_predict(x, iteration_range=(0, count))
        np.testing.assert_allclose(staged[:, count], expected, rtol=1e-5, atol=1e-5)
    assert json.loads(boosters[0].save_config())["learner"]["objective"]["name"] == "rank:pairwise"
    taus = [kendall_tau(*pair) for pair in zip(sample.split(staged[:, -1]), sample.split(y), strict=True)]
    assert min(taus) > 0.8
    assert fit.candidates[-1].train_loss == pytest.approx(1 - np.mean(taus))
    monkeypatch.setattr(fit_trees_module, "trees_of_xgboost", lambda trees: Trees.none())
    with pytest.raises(RuntimeError):
        fit_xgboost(store_of(config), [], config.baseline, config.seed)
