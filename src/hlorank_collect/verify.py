"""Whether a configuration computes what the default one computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EPSILON = {"bfloat16": 2.0**-7}  # numpy's finfo knows its own types only
_COARSE = 0.25  # of the 8-bit floats


def _comparable(array: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """An array of a type that numpy computes with, and the tolerance: half the digits, none for whole numbers."""
    if array.dtype.kind in "fc":
        return array, float(np.finfo(array.dtype).eps) ** 0.5
    if array.dtype.kind in "biu":
        return array, 0.0
    return array.astype(np.float32), _EPSILON.get(array.dtype.name, _COARSE) ** 0.5


def has_nan(outputs: Sequence[NDArray[Any]]) -> bool:
    """Whether a value of any output is not a number."""
    return any(bool(np.isnan(array).any()) for array, tolerance in map(_comparable, outputs) if tolerance)


def difference(reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> str | None:
    """Compares outputs with those of the default configuration, which hold no NaN.

    Floats may differ by half of their digits, relative to the value or to the root mean square of its output, since
    layouts change the order of sums; whole numbers may not.

    Returns:
        None where they are equal, else what differs.
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
