"""Trees with a ranking objective: grades, the order they learn, and trees that score as their libraries do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.trees import Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines import fit_rankers
from hlorank.training.baselines.fit_rankers import fit_lightgbm, fit_xgboost, grades
from hlorank.training.baselines.fit_trees import Sample
from tests.training.baselines.conftest import RIVALS, with_library

Settings = Callable[..., Config]
StoreOf = Callable[[Config], FeatureStore]
FITS = {"lightgbm": fit_lightgbm, "xgboost": fit_xgboost}

every_rival = pytest.mark.parametrize("method", [*map(with_library, RIVALS)])


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


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A sample of graphs of different sizes and ranges of runtimes, whose order is that of a function of columns."""
    rng = np.random.default_rng(0)
    counts = np.array([40, 300, 120, 60])
    x = np.round(rng.normal(size=(counts.sum(), 5)), 1).astype(np.float32)  # many rows equal a threshold
    y = np.repeat([0, 100, -7, 3], counts) + np.repeat([1, 50, 0.1, 9], counts) * (x[:, 0] * x[:, 1] + np.sin(x[:, 2]))
    sample = Sample(x, y, counts)
    monkeypatch.setattr(fit_rankers, "draw_sample", lambda *arguments: sample)
    return sample


@every_rival
def test_it_learns_an_order_within_graphs(method: str, toy: Sample, small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__iterations=60, baseline__learning_rate=0.3)
    fit = FITS[method](store_of(config), [], config.baseline, config.seed)
    losses = [float(candidate.train_loss or 0) for candidate in fit.candidates]
    trees = fit.candidates[-1].predictor
    assert isinstance(trees, Trees)
    trees.check(columns=5)
    scores = trees.staged(toy.x)[:, -1]
    taus = [kendall_tau(scores[rows], toy.y[rows]) for rows in toy.graphs]
    assert min(taus) > 0.8
    assert losses[-1] == pytest.approx(1 - np.mean(taus))
    assert losses[-1] < losses[0] / 2


@every_rival
def test_trees_are_those_of_the_library(
    method: str, toy: Sample, small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows reach the leaves that they reach in the library, also those that equal a threshold."""
    boosters: list[Any] = []
    library = pytest.importorskip(method)
    train = library.train

    def keep(*given: Any) -> Any:
        boosters.append(train(*given))
        return boosters[-1]

    monkeypatch.setattr(library, "train", keep)
    config = small(baseline__iterations=30)
    fit = FITS[method](store_of(config), [], config.baseline, config.seed)
    trees = fit.candidates[-1].predictor
    assert isinstance(trees, Trees)
    if method == "xgboost":
        assert json.loads(boosters[0].save_config())["learner"]["objective"]["name"] == "rank:pairwise"

    def predict(count: int) -> Any:
        if method == "lightgbm":
            return boosters[0].predict(toy.x, num_iteration=count)
        return boosters[0].inplace_predict(toy.x, iteration_range=(0, count))

    staged = trees.staged(toy.x)
    for count in (1, 2, 30):
        np.testing.assert_allclose(staged[:, count], -predict(count), rtol=1e-5, atol=1e-6)


@every_rival
def test_candidates_are_the_first_trees(method: str, small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__iterations=60, baseline__columns=0.5)
    store = store_of(config)
    fit = FITS[method](store, store.trainable("train"), config.baseline, config.seed)
    counts = [candidate.epoch for candidate in fit.candidates]
    assert (len(counts), counts[0], counts[-1]) == (50, 1, 60)
    graph = PooledGraph(store.open("valid", store.graphs("valid")[0]), input_sizes(store.spec))
    rows = np.array([3, 0])
    each = np.stack([candidate.predictor.score(graph, rows) for candidate in fit.candidates], axis=1)
    np.testing.assert_array_equal(fit.scores(graph, rows), each)


@pytest.mark.parametrize("method", [with_library("lightgbm")])
def test_more_rows_than_lightgbm_takes(method: str, small: Settings, store_of: StoreOf) -> None:
    config = small(baseline__rows_per_graph=10_001)
    with pytest.raises(ConfigError, match=r"baseline\.rows_per_graph=10001: .*lightgbm.* 10000"):
        FITS[method](store_of(config), [], config.baseline, config.seed)


@every_rival
def test_other_trees_than_those_of_the_library(
    method: str, toy: Sample, small: Settings, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_rankers, "_joined", lambda trees: Trees.none())
    config = small()
    with pytest.raises(RuntimeError, match=r"constraints\.txt"):
        FITS[method](store_of(config), [], config.baseline, config.seed)
