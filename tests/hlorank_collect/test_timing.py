from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank_collect.timing import Rounds, measure, runtimes, split_half_tau, timer_of


def test_the_level_of_a_round_has_no_effect() -> None:
    level = np.array([1.0, 1.0, 7.0, 1.3, 1.0])[:, None]
    base = np.array([100.0, 200.0, 150.0])
    np.testing.assert_allclose(runtimes(level * base), base)


def test_one_disturbed_measurement_has_no_effect() -> None:
    times = np.tile([100.0, 200.0, 150.0], (5, 1))
    times[2, 0] = 900.0
    np.testing.assert_allclose(runtimes(times), [100, 200, 150])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_runtimes_are_in_the_unit_of_the_times(rounds: int, configurations: int, seed: int) -> None:
    times = np.random.default_rng(seed).uniform(1, 1e6, (rounds, configurations))
    estimate = runtimes(times)
    assert estimate.shape == (configurations,)
    assert (estimate > 0).all()
    np.testing.assert_allclose(runtimes(times * 1e3), estimate * 1e3)
    np.testing.assert_allclose(runtimes(times[:1]), times[0])


def test_split_half_tau_compares_every_other_round() -> None:
    up, down = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    assert split_half_tau(np.array([up, up, up, up])) == pytest.approx(1)
    assert split_half_tau(np.array([up, down, up, down])) == pytest.approx(-1)
    assert math.isnan(split_half_tau(np.array([up])))


def noisy(noise: float, log: list[int] | None = None) -> Callable[[int], float]:
    rng = np.random.default_rng(1)

    def timer(index: int) -> float:
        if log is not None:
            log.append(index)
        return 1000.0 * (1 + 0.1 * index) * math.exp(noise * rng.standard_normal())

    return timer


def test_measuring_ends_early_without_noise_only() -> None:
    rounds = Rounds(min=4, max=12, check=2)
    assert len(measure(noisy(0.001), 10, np.random.default_rng(0), rounds)) == 4
    assert len(measure(noisy(3.0), 10, np.random.default_rng(0), rounds)) == 12
    assert len(measure(noisy(0.1), 1, np.random.default_rng(0), rounds)) == 4


def test_each_round_measures_each_configuration_once_in_a_new_order() -> None:
    log: list[int] = []
    times = measure(noisy(3.0, log), 20, np.random.default_rng(0), Rounds(min=2, max=3))
    assert times.shape == (3, 20)
    orders = [tuple(log[start : start + 20]) for start in (0, 20, 40)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len(set(orders)) == 3
    again: list[int] = []
    np.testing.assert_array_equal(measure(noisy(3.0, again), 20, np.random.default_rng(0), Rounds(min=2, max=3)), times)
    assert again == log


def test_after_the_deadline_each_half_still_has_one_round() -> None:
    beats: list[int] = []
    times = measure(noisy(3.0), 5, np.random.default_rng(0), deadline=time.monotonic() - 1, heartbeat=beats.append)
    assert len(times) == 2
    assert beats == [1, 2]


def test_garbage_collection_is_off_only_while_measuring() -> None:
    def fails(index: int) -> float:
        assert not gc.isenabled()
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        measure(fails, 2, np.random.default_rng(0))
    assert gc.isenabled()


def test_bad_input_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"configurations: .* 0"):
        measure(noisy(0.1), 0, rng)
    with pytest.raises(ValueError, match=r"timer: .* 0\.0"):
        measure(lambda _: 0.0, 2, rng)
    with pytest.raises(ValueError, match="min <= max"):
        Rounds(min=5, max=4)


def test_the_timer_warms_up_and_returns_the_faster_of_two_runs() -> None:
    pauses = iter([0.2, 0.0, 0.05])
    assert 0 < timer_of(lambda _: time.sleep(next(pauses)))(0) < 40e6
    assert next(pauses, None) is None


def test_certain_rounds_are_measured_after_the_deadline() -> None:
    def count(**limits: int) -> int:
        rounds = Rounds(min=8, max=8, **limits)
        return len(measure(lambda _: 1.0, 2, np.random.default_rng(0), rounds, deadline=0.0))

    assert (count(), count(certain=5), count(certain=20)) == (2, 5, 8)
