"""RandomRanker: what its scores depend on, and what not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.random_ranker import RandomRanker
from hlorank.models.inputs import InputSizes

SIZES = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)


def chance(seed: int) -> RandomRanker:
    return RandomRanker(np.array([seed], dtype=np.int64))


@pytest.fixture
def features(make_features: Callable[..., GraphFeatures]) -> GraphFeatures:
    return make_features(dtype=np.float32)


def test_scores_depend_on_seed_name_and_row_alone(
    features: GraphFeatures, make_features: Callable[..., GraphFeatures]
) -> None:
    rows = np.arange(12)

    def scores(seed: int, graph: GraphFeatures, rows: NDArray[np.int64] = rows) -> NDArray[np.float64]:
        return chance(seed).score(PooledGraph(graph, SIZES), rows)

    first = scores(3, features)
    assert len(set(first.tolist())) == 12
    assert 0 <= first.min() < first.max() < 1
    np.testing.assert_array_equal(scores(3, make_features(seed=8, nodes=40, distinct=30)), first)
    np.testing.assert_array_equal(scores(3, features, np.array([7, 2, 2])), first[[7, 2, 2]])
    assert scores(3, features, rows[:0]).shape == (0,)
    others = (scores(4, features), scores(3, replace(features, name="other")))
    assert not any(set(first.tolist()) & set(other.tolist()) for other in others)


def test_nothing_else_is_known(features: GraphFeatures) -> None:
    graph, rows = PooledGraph(features, SIZES), np.array([5, 1])
    np.testing.assert_array_equal(chance(0).embed(graph, rows), chance(0).score(graph, rows)[:, None])


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (np.array([-1]), "seed: expected a number from 0, found others, first at 0"),
        (np.array([1, 2]), r"seed: expected int64 of shape \(1,\), found int64 of shape \(2,\)"),
        (np.array([1.0]), "seed: expected int64 .* found float64"),
    ],
)
def test_something_else_is_no_seed(seed: NDArray[np.int64], message: str) -> None:
    chance(2**40).check(columns=7)
    with pytest.raises(DataError, match=message):
        RandomRanker(seed).check(columns=7)
