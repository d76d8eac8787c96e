from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank_collect.verify import difference, has_nan


def test_other_orders_of_sums_are_equal_and_errors_are_not() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((1000, 64)).astype(np.float32)
    wanted = [terms.sum(0)]
    assert difference(wanted, [terms[::-1].sum(0)]) is None
    wrong = terms.sum(0)
    wrong[3] += 0.1
    assert difference(wanted, [wrong]) == "1 of 64 values of output 0 differ from the default's"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_tolerance_follows_the_type(dtype: type) -> None:
    one: NDArray[Any] = np.ones(4, dtype=dtype)
    half = float(np.finfo(dtype).eps) ** 0.5
    assert difference([one], [(one * (1 + half)).astype(dtype)]) is None
    assert difference([one], [(one * (1 + 4 * half)).astype(dtype)]) is not None


def test_whole_numbers_and_booleans_must_be_equal() -> None:
    for array in (np.array([1, 2, 2**31 - 1], np.int32), np.array([True, False, True])):
        other = array.copy()
        other[1] = not other[1]
        assert difference([array], [array.copy()]) is None
        assert difference([array], [other]) is not None


def test_infinities_must_be_in_the_same_places() -> None:
    wanted = np.array([1.0, -np.inf, np.inf], np.float32)
    assert difference([wanted], [wanted.copy()]) is None
    assert difference([wanted], [np.array([1.0, np.inf, np.inf], np.float32)]) is not None
    assert difference([wanted], [np.array([1.0, 2.0, np.inf], np.float32)]) is not None


def test_nan_is_found_and_never_equal() -> None:
    clean: list[NDArray[Any]] = [np.zeros(3, np.float32), np.zeros(0, np.float32), np.array([3], np.int32)]
    assert not has_nan(clean)
    assert has_nan([*clean, np.array([0, np.nan], np.float16)])
    assert difference([np.zeros(2, np.float32)], [np.array([0, np.nan], np.float32)]) is not None


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_floats_of_8_bits_are_compared(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes", reason="comes with jax (extra collect)"), name)
    one = np.ones(4, dtype=dtype)
    assert difference([one], [one.copy()]) is None
    assert difference([one], [(one * dtype(4)).astype(dtype)]) is not None
    assert not has_nan([one])
    assert has_nan([np.array([np.nan], dtype=dtype)])


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_whole_numbers_of_4_bits_must_be_equal(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes", reason="comes with jax (extra collect)"), name)
    seven, six = np.full(3, 7, dtype=dtype), np.full(3, 6, dtype=dtype)
    assert difference([seven], [seven.copy()]) is None
    assert difference([seven], [six]) is not None
    assert not has_nan([seven])


def test_types_of_accelerators_are_compared() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes", reason="comes with jax (extra collect)").bfloat16
    one = np.ones(4, dtype=bfloat16)
    assert difference([one], [(one * bfloat16(1.0625)).astype(bfloat16)]) is None
    assert difference([one], [(one * bfloat16(1.5)).astype(bfloat16)]) is not None
    assert has_nan([np.array([np.nan], dtype=bfloat16)])
