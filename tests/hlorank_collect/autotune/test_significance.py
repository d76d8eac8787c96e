"""The default wins unless a configuration is faster beyond noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlorank_collect.autotune.significance import Speedup, speedup, winner


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


def test_a_slower_one_is_reported_as_slower() -> None:
    column, found = winner(times([1.0, 1.5], 0.02), np.random.default_rng(0))
    assert column == 1
    assert not found.real
    assert found.high < 1


def test_the_same_times_give_the_same_winner() -> None:
    some = times([1.0, 0.95, 0.96], 0.05)
    assert winner(some, np.random.default_rng(3)) == winner(some, np.random.default_rng(3))


@pytest.mark.parametrize("shape", [(3, 2), (4, 1)])
def test_too_little_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        winner(np.ones(shape), np.random.default_rng(0))


def test_faster_within_noise_is_not_real() -> None:
    assert not Speedup(1.1, 1.0, 1.2).real
