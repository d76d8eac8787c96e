"""Gradient boosting: the sample that trees are fitted to, and trees equal to those of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.trees import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.fit_trees import check_trees, draw_sample, fit_trees, trees_of

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
    check_trees(trees, regressor, x)
    with pytest.raises(RuntimeError, match="scikit-learn"):
        check_trees(trees.first(39), regressor, x)
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
    assert [len(sample.y[rows]) for rows in sample.graphs] == counts
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


def test_candidates_are_the_first_trees(small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__iterations=60)
    store = store_of(config)
    fit = fit_trees(store, store.trainable("train"), config.baseline, config.seed)
    counts = [candidate.epoch for candidate in fit.candidates]
    assert (len(counts), counts[0], counts[-1]) == (50, 1, 60)  # not every number of trees is a candidate
    assert [candidate.steps for candidate in fit.candidates] == counts
    graph = PooledGraph(store.open("valid", store.graphs("valid")[0]), input_sizes(store.spec))
    rows = np.array([3, 0])
    each = np.stack([candidate.predictor.score(graph, rows) for candidate in fit.candidates], axis=1)
    np.testing.assert_array_equal(fit.scores(graph, rows), each)
    sample = draw_sample(store, store.trainable("train"), config.baseline.rows_per_graph, config.seed)
    last = fit.candidates[-1]
    assert isinstance(last.predictor, Trees)
    error = last.predictor.staged(sample.x)[:, -1] - sample.y
    assert last.train_loss == pytest.approx(np.average(error**2, weights=sample.weight))
