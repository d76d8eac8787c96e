"""Batches share the budget, and each is chosen from what was measured before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hlorank_collect.autotune.propose import in_order, propose


def test_batches_know_what_was_measured_and_end_with_the_budget() -> None:
    asked: list[tuple[dict[int, float], list[int]]] = []

    def plus_one(chosen: Any) -> Any:
        return 1.0 + chosen

    def choose(measured: Mapping[int, float], excluded: set[int], count: int) -> Any:
        chosen = in_order(20)(measured, excluded, count)
        asked.append((dict(measured), chosen.tolist()))
        return chosen

    assert propose(choose, plus_one, budget=7) == {one: 1.0 + one for one in range(1, 8)}
    assert [chosen for _, chosen in asked] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [sorted(measured) for measured, _ in asked] == [[], [1, 2, 3], [1, 2, 3, 4, 5, 6]]
    assert asked[1][0] == {1: math.log(2), 2: math.log(3), 3: math.log(4)}


def test_failed_candidates_cost_no_budget_and_are_not_reported_as_measured() -> None:
    seen: list[set[int]] = []

    def choose(measured: Mapping[int, float], excluded: set[int], count: int) -> Any:
        seen.append(set(measured))
        return in_order(9)(measured, excluded, count)

    tried = propose(choose, lambda chosen: np.where(np.isin(chosen, [1, 3]), math.inf, 1.0), budget=3)
    assert list(tried) == [1, 2, 3, 4, 5]
    assert seen == [set(), set(), {2}, {2}, {2, 4}]


def test_everything_is_tried_once_where_the_budget_allows_more() -> None:
    assert list(propose(in_order(6), lambda chosen: np.ones(len(chosen)), budget=100)) == [*range(1, 7)]


def test_after_the_time_limit_no_batch_is_started() -> None:
    clock = iter([True, True, False])
    tried = propose(in_order(9), lambda chosen: np.ones(len(chosen)), budget=3, in_time=lambda: next(clock))
    assert list(tried) == [1, 2]
