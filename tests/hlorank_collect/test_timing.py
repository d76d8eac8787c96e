"""Rounds, runtimes, and comparison of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank_collect.timing import Rounds, difference, has_nan, measure, runtimes, split_half_tau


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
    rounds = Rounds(min=4, max=12)
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


def test_certain_rounds_are_measured_after_the_deadline() -> None:
    def count(**limits: int) -> int:
        rounds = Rounds(min=8, max=8, **limits)
        return len(measure(lambda _: 1.0, 2, np.random.default_rng(0), rounds, deadline=0.0))

    assert (count(), count(certain=5), count(certain=20)) == (2, 5, 8)


def test_neither_the_level_of_a_round_nor_one_disturbed_measurement_has_an_effect() -> None:
    base = np.array([100.0, 200.0, 150.0])
    np.testing.assert_allclose(runtimes(np.array([1.0, 1.0, 7.0, 1.3, 1.0])[:, None] * base), base)
    times = np.tile(base, (5, 1))
    times[2, 0] = 900.0
    np.testing.assert_allclose(runtimes(times), base)


def test_other_orders_of_sums_are_equal_and_errors_are_not() -> None:
    terms = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    wrong = terms.sum(0)
    assert difference([wrong], [terms[::-1].sum(0)]) is None
    wrong[3] += 0.1
    assert difference([terms.sum(0)], [wrong]) == "1 of 64 values of output 0 differ from the default's"


@pytest.mark.parametrize("name", ["float16", "float32", "complex64", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_half_of_the_digits_of_floats_are_compared(name: str) -> None:
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes", reason="comes with jax (extra collect)"), name, name))
    one: NDArray[Any] = np.ones(4, dtype)
    digits = {"bfloat16": 2.0**-7, "float8_e5m2": 0.25, "float8_e4m3fn": 0.25}.get(name)
    half = (digits or float(np.finfo(dtype).eps)) ** 0.5
    assert difference([one], [(one * (1 + half)).astype(dtype)]) is None
    assert difference([one], [(one * (1 + 4 * half)).astype(dtype)]) is not None
    assert not has_nan([one])


@pytest.mark.parametrize(
    ("wanted", "other"),
    [
        (np.array([1, 2, 2**31 - 1], np.int32), [1, 3, 2**31 - 1]),
        (np.array([True, False, True]), [True, True, True]),
        (np.array([1.0, -np.inf, np.inf], np.float32), [1.0, np.inf, np.inf]),
        (np.array([1.0, -np.inf, np.inf], np.float32), [1.0, 2.0, np.inf]),
        (np.zeros(2, np.float32), [0, np.nan]),
    ],
)
def test_whole_numbers_and_infinities_must_be_equal_and_nan_never_is(wanted: NDArray[Any], other: list[float]) -> None:
    assert difference([wanted], [wanted.copy()]) is None
    assert difference([wanted], [np.array(other, wanted.dtype)]) is not None


def test_nan_is_found() -> None:
    clean: list[NDArray[Any]] = [np.zeros(3, np.float32), np.zeros(0, np.float32), np.array([3], np.int32)]
    assert not has_nan(clean)
    assert has_nan([*clean, np.array([0, np.nan], np.float16)])
