"""Predictors: weighted sums and random scores are exact, and wrong arrays are errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, RandomRanker
from hlorank.models.graph_inputs import InputSizes

SIZES = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)
COLUMNS = pooled_columns(SIZES)


@pytest.fixture
def features(make_features: Callable[..., GraphFeatures]) -> GraphFeatures:
    return make_features(dtype=np.float32)


@pytest.fixture
def graph(features: GraphFeatures) -> PooledGraph:
    return PooledGraph(features, SIZES)


@pytest.fixture
def linear() -> Linear:
    rng = np.random.default_rng(0)
    return Linear(rng.normal(size=COLUMNS), rng.uniform(0.5, 2, COLUMNS))


def test_scores_are_sums_of_the_embedding(linear: Linear, graph: PooledGraph) -> None:
    linear.check(COLUMNS)
    rows = np.array([4, 1, 4])
    scores = linear.score(graph, rows)
    np.testing.assert_allclose(scores, (graph.rows(rows).astype(np.float64) / linear.scale) @ linear.weight)
    assert scores[0] == scores[2] != scores[1]
    np.testing.assert_array_equal(linear.embed(graph, rows).sum(axis=1), scores)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(np.concatenate([linear.score(graph, row[None]) for row in rows]), scores)
    assert linear.score(graph, rows[:0]).shape == (0,)


def test_a_single_column_and_no_weights(graph: PooledGraph) -> None:
    column, rows = changed_column(SIZES), np.arange(12)
    of_column = Linear.of_column(column, COLUMNS)
    of_column.check(COLUMNS)
    np.testing.assert_array_equal(of_column.score(graph, rows), graph.rows(rows)[:, column])
    none = Linear.none(COLUMNS)
    none.check(COLUMNS)
    np.testing.assert_array_equal(none.score(graph, rows), np.zeros(12))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight", lambda a: a[:-1], r"weight: .*float64 of shape"),
        ("scale", lambda a: a.astype(np.float32), "scale: .*float32"),
        ("weight", lambda a: np.where(a == a[3], np.nan, a), "weight: .* at 3"),
        ("scale", lambda a: np.where(a == a[5], 0, a), "scale: .* at 5"),
        ("scale", lambda a: a + np.inf, "scale: "),
    ],
)
def test_wrong_arrays_are_errors(name: str, change: Callable[[Any], Any], message: str, linear: Linear) -> None:
    with pytest.raises(DataError, match=message):
        replace(linear, **{name: change(getattr(linear, name))}).check(COLUMNS)


def test_analytical_scores_are_sums_of_bytes(graph: PooledGraph) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(size=(12, COPY_COLUMNS))
    graph.__dict__["copied"] = sizes.__getitem__  # a cached property
    analytical = Analytical(rng.uniform(size=COPY_COLUMNS))
    analytical.check(columns=7)
    rows = np.array([4, 1, 4])
    scores = analytical.score(graph, rows)
    np.testing.assert_allclose(scores, sizes[rows] @ analytical.weight)
    np.testing.assert_array_equal(np.concatenate([analytical.score(graph, row[None]) for row in rows]), scores)
    np.testing.assert_array_equal(Analytical.none().score(graph, rows), np.zeros(3))


@pytest.mark.parametrize("weight", [np.zeros(3), np.full(COPY_COLUMNS, np.nan), np.full(COPY_COLUMNS, -1.0)])
def test_wrong_weights_are_errors(weight: NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match="weight: "):
        Analytical(weight).check(columns=7)


def random_ranker(seed: int) -> RandomRanker:
    return RandomRanker(np.array([seed], dtype=np.int64))


def test_random_scores_depend_on_seed_name_and_row_only(
    features: GraphFeatures, make_features: Callable[..., GraphFeatures]
) -> None:
    rows = np.arange(12)

    def scores(seed: int, graph: GraphFeatures, rows: NDArray[np.int64] = rows) -> NDArray[np.float64]:
        return random_ranker(seed).score(PooledGraph(graph, SIZES), rows)

    first = scores(3, features)
    assert len(set(first.tolist())) == 12
    assert 0 <= first.min() < first.max() < 1
    np.testing.assert_array_equal(scores(3, make_features(seed=8, nodes=40, distinct=30)), first)
    np.testing.assert_array_equal(scores(3, features, np.array([7, 2, 2])), first[[7, 2, 2]])
    assert scores(3, features, rows[:0]).shape == (0,)
    others = (scores(4, features), scores(3, replace(features, name="other")))
    assert not any(set(first.tolist()) & set(other.tolist()) for other in others)


def test_the_embedding_of_random_scores_is_the_scores(graph: PooledGraph) -> None:
    rows = np.array([5, 1])
    np.testing.assert_array_equal(random_ranker(0).embed(graph, rows), random_ranker(0).score(graph, rows)[:, None])


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (np.array([-1]), "seed: .* first at 0"),
        (np.array([1, 2]), r"seed: .*int64 of shape \(2,\)"),
        (np.array([1.0]), "seed: .*float64"),
    ],
)
def test_wrong_seeds_are_errors(seed: NDArray[np.int64], message: str) -> None:
    random_ranker(2**40).check(columns=7)
    with pytest.raises(DataError, match=message):
        RandomRanker(seed).check(columns=7)
