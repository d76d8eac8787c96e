from __future__ import annotations

import numpy as np
import pytest

from hlorank.hlo.layout_search import GENERATION, SEARCHES, Float64, default, models, random
from hlorank.hlo.layout_space import Layouts, LayoutSpace


@pytest.fixture
def space() -> LayoutSpace:
    """Twenty nodes with three matrices each."""
    return LayoutSpace(np.arange(20), np.full((20, 3), 2))


def configured(layouts: Layouts) -> Float64:
    """Return the number of nodes that each configuration configures."""
    return np.asarray((layouts >= 0).any(axis=2).sum(axis=1), np.float64)


def unmeasured(batch: Layouts) -> Float64:
    raise AssertionError("the search random measures nothing")


@pytest.mark.parametrize("name", ["random", "default", "models"])
def test_configurations_are_valid_distinct_and_begin_with_the_default(space: LayoutSpace, name: str) -> None:
    rows = SEARCHES[name](space, 60, np.random.default_rng(0), configured)
    assert rows.shape == (60, 20, 18)
    assert rows.dtype == np.int8
    assert (rows[0] == -1).all()
    assert len(np.unique(rows, axis=0)) == 60
    for row in rows:
        space.check(row)
    np.testing.assert_array_equal(SEARCHES[name](space, 60, np.random.default_rng(0), configured), rows)
    assert (SEARCHES[name](space, 60, np.random.default_rng(1), configured) != rows).any()


def test_random_changes_few_nodes_as_often_as_many(space: LayoutSpace) -> None:
    changed = configured(random(space, 400, np.random.default_rng(0), unmeasured))[1:]
    # Log-uniform between 1/20 and 1: half of the probabilities are below 0.22, which is 4.5 nodes.
    assert 0.35 < np.mean(changed <= 4) < 0.65
    assert changed.max() >= 18


@pytest.mark.parametrize("name", ["random", "default", "models"])
def test_a_small_space_is_exhausted(name: str) -> None:
    tiny = LayoutSpace(np.array([3]), np.array([[2, 0, 0]]))
    rows = SEARCHES[name](tiny, 40, np.random.default_rng(0), configured)
    assert len(rows) == tiny.size == 3
    nothing = LayoutSpace(np.array([3]), np.array([[1, 0, 0]]))
    assert len(SEARCHES[name](nothing, 40, np.random.default_rng(0), configured)) == nothing.size == 1


def test_default_measures_generations_once_and_selects(space: LayoutSpace) -> None:
    batches: list[Layouts] = []

    def slower_where_configured(batch: Layouts) -> Float64:
        batches.append(batch)
        return configured(batch)

    def faster_where_configured(batch: Layouts) -> Float64:
        return -configured(batch)

    rows = default(space, 50, np.random.default_rng(0), slower_where_configured)
    np.testing.assert_array_equal(np.concatenate(batches), rows[: len(np.concatenate(batches))])
    assert [len(batch) for batch in batches] == [1, *[GENERATION] * 6]
    few = configured(rows)[-10:].mean()
    many = configured(default(space, 50, np.random.default_rng(0), faster_where_configured))[-10:].mean()
    assert few + 2 < many


def test_models_measures_a_random_half_and_breeds_from_it(space: LayoutSpace) -> None:
    batches: list[Layouts] = []

    def faster_where_configured(batch: Layouts) -> Float64:
        batches.append(batch)
        return -configured(batch)

    rows = models(space, 50, np.random.default_rng(0), faster_where_configured)
    np.testing.assert_array_equal(rows[:25], random(space, 25, np.random.default_rng(0), unmeasured))
    assert [len(batch) for batch in batches] == [25, *[GENERATION] * 3]
    assert configured(rows[25:]).mean() > 2 * configured(rows[:25]).mean()
