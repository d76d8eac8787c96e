"""The population finds what the score rewards, without measurements, and uses what is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlorank.hlo.layout_space import LayoutSpace
from hlorank_collect.autotune.evolution import Evolution

SPACE = LayoutSpace(np.arange(12) * 3, np.tile([2, 2, 0], (12, 1)))
KINDS = np.repeat([0, 1, 2], 4)


def score(layouts: Any) -> Any:
    """Each node of kind 0 whose output is column-major is faster by 1; any other change is slower by 0.5."""
    good = (layouts[:, :, :2] == [0, 1]).all(axis=2) & (KINDS == 0)
    changed = (layouts != -1).reshape(*layouts.shape[:2], 3, 6).any(axis=3).sum(axis=(1, 2))
    return 7 + 0.5 * (changed - good.sum(axis=1)) - good.sum(axis=1)


def evolution(seed: int = 0, size: int = 120, kinds: Any = KINDS) -> Evolution:
    return Evolution(SPACE, kinds, score, size=size, batches=2, rng=np.random.default_rng(seed))


def test_the_population_grows_to_its_size_without_repetition() -> None:
    some = evolution()
    for _ in range(3):
        some.choose({}, set(), 2)
    assert len(some.layouts) == 120
    assert len({one.tobytes() for one in some.layouts}) == 120
    for one in some.layouts:
        SPACE.check(one)


def test_equal_nodes_change_together() -> None:
    best = []
    for kinds in (KINDS, np.arange(12)):
        some = evolution(size=200, kinds=kinds)
        some.choose({}, set(), 1)
        best.append(score(some.layouts).min())
    assert best[0] == 7 - 4  # all four nodes of the kind, and nothing else
    assert best[0] < best[1]


def test_what_is_measured_or_excluded_is_not_chosen_again() -> None:
    some = evolution()
    first = some.choose({}, set(), 4).tolist()
    second = some.choose(dict.fromkeys(first[1:], 0.1), set(first), 4).tolist()
    assert not set(first) & set(second)


def test_a_small_space_is_exhausted() -> None:
    space = LayoutSpace(np.array([0]), np.array([[2, 0, 0]]))
    some = Evolution(space, np.array([0]), lambda x: np.zeros(len(x)), size=50, batches=1, rng=np.random.default_rng(0))
    assert sorted(some.choose({}, set(), 10).tolist()) == [1, 2]
    assert some.choose({1: 0.0, 2: 0.1}, {1, 2}, 10).tolist() == []
    assert some.scores.tolist() == pytest.approx([0, 0, 0])
