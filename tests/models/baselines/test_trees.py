"""Trees as plain arrays: sums, and wrong arrays are errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, pooled_columns
from hlorank.models.baselines.trees import Trees
from hlorank.models.graph_inputs import InputSizes

SIZES = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)


def make_trees(column: int = 1) -> Trees:
    """x[column] <= 0.5 ? 1 : (x[0] <= -1 ? 10 : 20), then a tree of one leaf, then x[0] <= 3 ? 1000 : 2000."""
    return Trees(
        root=np.array([0, 5, 6], dtype=np.int32),
        feature=np.array([column, 0, 0, 0, 0, 0, 0, 0, 0], dtype=np.int32),
        threshold=np.array([0.5, 0, -1, 0, 0, 0, 3, 0, 0]),
        left=np.array([1, 1, 3, 3, 4, 5, 7, 7, 8], dtype=np.int32),
        right=np.array([2, 1, 4, 3, 4, 5, 8, 7, 8], dtype=np.int32),
        value=np.array([0, 1, 0, 10, 20, 300, 0, 1000, 2000], dtype=np.float64),
        base=np.array([0.25]),
    )


def test_sums_of_trees() -> None:
    x = np.array([[0, 0.5], [-1, 0.75], [4, 0.75]], dtype=np.float32)
    staged = [[0.25, 1.25, 301.25, 1301.25], [0.25, 10.25, 310.25, 1310.25], [0.25, 20.25, 320.25, 2320.25]]
    trees = make_trees()
    trees.check(columns=2)
    np.testing.assert_array_equal(trees.staged(x), staged)
    for count in range(4):
        first = trees.first(count)
        first.check(columns=2)
        np.testing.assert_array_equal(first.staged(x), np.array(staged)[:, : count + 1])
    assert len(trees.first(1).value) == 5
    np.testing.assert_array_equal(Trees.none().staged(x), np.zeros((3, 1)))
    assert trees.staged(x[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("root", lambda a: a + 5, r"root: "),
        ("root", lambda a: a - 1, r"root: "),
        ("feature", lambda a: a + 1, r"feature: .* at 0"),
        ("feature", lambda a: a - 1, "feature: "),
        ("left", lambda a: a * 0, "left, right: "),  # a cycle
        ("right", lambda a: a + 1, "left, right: "),
        ("value", lambda a: a / 0, "threshold, value: "),
        ("threshold", lambda a: a * np.nan, "threshold, value: "),
        ("threshold", lambda a: a[:-1], r"threshold: .*float64 of shape \(8,\)"),
        ("left", lambda a: a.astype(np.int64), "left: "),
        ("base", lambda a: a[0], r"base: "),
        ("base", lambda a: a + np.inf, "base: "),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_wrong_arrays_are_errors(name: str, change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(make_trees(), **{name: change(getattr(make_trees(), name))}).check(columns=2)


def test_scores_are_the_sums_over_all_trees_of_pooled_features(make_features: Callable[..., GraphFeatures]) -> None:
    graph, rows = PooledGraph(make_features(dtype=np.float32), SIZES), np.array([3, 0, 7])
    trees = make_trees(changed_column(SIZES))
    trees.check(pooled_columns(SIZES))
    x = graph.rows(rows)
    np.testing.assert_array_equal(trees.score(graph, rows), trees.staged(x)[:, -1])
    np.testing.assert_array_equal(trees.embed(graph, rows), x.astype(np.float64), strict=True)
    assert trees.row_bytes > Trees.none().row_bytes == 0
