"""Batches of a search, and what is faster beyond noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hlorank_collect.autotune.search import RandomCandidates, propose, speedup, winner


def searched(count: int, failing: tuple[int, ...] = (), **settings: Any) -> tuple[dict[int, float], list[Any]]:
    """Search among candidates 1 to `count`, each 1 slower than the one before; return the tried, and what was asked."""
    candidates = RandomCandidates.__new__(RandomCandidates)
    candidates.layouts = np.zeros((count + 1, 1, 18), np.int8)
    asked: list[Any] = []

    def choose(measured: Mapping[int, float], excluded: set[int], number: int) -> Any:
        chosen = candidates.choose(measured, excluded, number)
        asked.append((dict(measured), chosen.tolist()))
        return chosen

    def measure(chosen: Any) -> Any:
        return np.where(np.isin(chosen, failing), math.inf, 1.0 + chosen)

    return propose(choose, measure, **settings), asked


def test_batches_know_what_was_measured_and_end_with_the_budget() -> None:
    tried, asked = searched(20, budget=7)
    assert tried == {one: 1.0 + one for one in range(1, 8)}
    assert [chosen for _, chosen in asked] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [measured for measured, _ in asked][:2] == [{}, {1: math.log(2), 2: math.log(3), 3: math.log(4)}]


def test_failed_candidates_cost_no_budget_and_are_not_reported_as_measured() -> None:
    tried, asked = searched(9, (1, 3), budget=3)
    assert list(tried) == [1, 2, 3, 4, 5]
    assert [set(measured) for measured, _ in asked] == [set(), set(), {2}, {2}, {2, 4}]
    assert searched(9, budget=3, deadline=0.0) == ({}, [])


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
