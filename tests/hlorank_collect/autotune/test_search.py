"""Batches of a search, and what is faster beyond noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hlorank_collect.autotune.search import RandomCandidates, propose, speedup, winner


def in_order(count: int) -> RandomCandidates:
    """Candidates 1 to `count`, chosen in this order."""
    candidates = RandomCandidates.__new__(RandomCandidates)
    candidates.layouts = np.zeros((count + 1, 1, 18), np.int8)
    return candidates


def test_batches_know_what_was_measured_and_end_with_the_budget() -> None:
    asked: list[tuple[dict[int, float], list[int]]] = []

    def plus_one(chosen: Any) -> Any:
        return 1.0 + chosen

    def choose(measured: Mapping[int, float], excluded: set[int], count: int) -> Any:
        chosen = in_order(20).choose(measured, excluded, count)
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
        return in_order(9).choose(measured, excluded, count)

    tried = propose(choose, lambda chosen: np.where(np.isin(chosen, [1, 3]), math.inf, 1.0), budget=3)
    assert list(tried) == [1, 2, 3, 4, 5]
    assert seen == [set(), set(), {2}, {2}, {2, 4}]


def test_after_the_time_limit_no_batch_is_started() -> None:
    clock = iter([True, True, False])
    tried = propose(in_order(9).choose, lambda chosen: np.ones(len(chosen)), budget=3, in_time=lambda: next(clock))
    assert list(tried) == [1, 2]


def times(relative: list[float], noise: float, rounds: int = 40, seed: int = 0) -> Any:
    """Return times with a random level per round."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 1.0, (rounds, 1)))
    return 1e6 * level * np.array(relative) * np.exp(rng.normal(0, noise, (rounds, len(relative))))


def test_without_noise_the_speedup_is_exact() -> None:
    column, found = winner(times([1.0, 0.8, 0.5, 2.0], 0.0), np.random.default_rng(0))
    assert column == 2
    assert (found.estimate, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.real


def test_the_interval_holds_the_truth_and_shrinks_with_rounds() -> None:
    few, many = (speedup(times([1.0, 0.9], 0.05, rounds), 1, np.random.default_rng(0)) for rounds in (20, 400))
    for found in (few, many):
        assert found.low < 1 / 0.9 < found.high
        assert found.low < found.estimate < found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_the_best_of_many_equal_ones_does_not_win() -> None:
    wins = [winner(times([1.0] * 31, 0.05, seed=seed), np.random.default_rng(0))[1].real for seed in range(40)]
    # 2.5 % are expected to be wrong at random; if the same rounds chose and judged, nearly all would be.
    assert sum(wins) <= 4


@pytest.mark.parametrize("shape", [(3, 2), (4, 1)])
def test_too_little_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        winner(np.ones(shape), np.random.default_rng(0))
