"""Comparison of a configuration's outputs with those of the default configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EPSILON = {"bfloat16": 2.0**-7}  # finfo of numpy has only numpy's own types
_COARSE = 0.25  # for 8-bit floats


class WrongOutputError(RuntimeError):
    """A configuration whose outputs differ from the default's."""


def _comparable(array: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return an array of a type of numpy, and the tolerance: half the digits of floats, 0 for whole numbers."""
    if array.dtype.isbuiltin == 1 and array.dtype.kind in "fc":
        return array, float(np.finfo(array.dtype).eps) ** 0.5
    if array.dtype.kind in "biu":
        return array, 0.0
    if "int" in array.dtype.name:  # of 4 and 2 bits
        return array.astype(np.int8), 0.0
    return array.astype(np.float32), _EPSILON.get(array.dtype.name, _COARSE) ** 0.5


def has_nan(outputs: Sequence[NDArray[Any]]) -> bool:
    """Return True if any output holds NaN."""
    return any(bool(np.isnan(array).any()) for array, tolerance in map(_comparable, outputs) if tolerance)


def difference(reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> str | None:
    """Compare outputs with those of the default configuration, which hold no NaN.

    Floats may differ by half of their digits, relative to the value or to the root mean square of its output, since
    layouts change the order of sums; whole numbers may not.

    Returns:
        None where they are equal, else a description of the first output that differs.
    """
    for number, (wanted, got) in enumerate(zip(reference, outputs, strict=True)):
        expected, tolerance = _comparable(wanted)
        found, _ = _comparable(got)
        finite = np.abs(expected[np.isfinite(expected)]).astype(np.float64)
        scale = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        close = np.isclose(found, expected, rtol=tolerance, atol=tolerance * scale)
        if not close.all():
            return f"{np.count_nonzero(~close)} of {close.size} values of output {number} differ from the default's"
    return None
