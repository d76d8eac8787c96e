"""Weighted sums of pooled features: exact on numbers, and arrays that are something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.baselines.linear import Linear
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, pooled_columns
from hlorank.models.inputs import InputSizes

SIZES = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)
COLUMNS = pooled_columns(SIZES)


@pytest.fixture
def graph(make_features: Callable[..., GraphFeatures]) -> PooledGraph:
    return PooledGraph(make_features(dtype=np.float32), SIZES)


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


def test_a_single_column_and_none(graph: PooledGraph) -> None:
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
        ("weight", lambda a: a[:-1], rf"weight: expected float64 of shape \({COLUMNS},\), found float64 of shape"),
        ("scale", lambda a: a.astype(np.float32), "scale: expected float64 .* found float32"),
        ("weight", lambda a: np.where(a == a[3], np.nan, a), "weight: expected finite numbers, found others, .* at 3"),
        ("scale", lambda a: np.where(a == a[5], 0, a), "scale: expected finite numbers above 0, found .* at 5"),
        ("scale", lambda a: a + np.inf, "scale: expected finite"),
    ],
)
def test_arrays_of_something_else(name: str, change: Callable[[Any], Any], message: str, linear: Linear) -> None:
    with pytest.raises(DataError, match=message):
        replace(linear, **{name: change(getattr(linear, name))}).check(COLUMNS)
