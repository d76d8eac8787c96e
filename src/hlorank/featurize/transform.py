"""Transformation of numeric columns, fitted on the train split."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from hlorank.config import Section


def _array(dtype: type[np.generic]) -> PlainValidator:
    """Return a validator that makes an array of a list of numbers, and leaves arrays as they are."""

    def check(value: object) -> NDArray[Any]:
        if isinstance(value, list | np.ndarray):
            with suppress(TypeError, ValueError, OverflowError):
                return np.asarray(value, dtype=dtype)
        raise PydanticCustomError("array", f"expected a list of {np.dtype(dtype).name} numbers")

    return PlainValidator(check)


_AS_LIST = PlainSerializer(lambda array: array.tolist(), when_used="json")
Float32Array = Annotated[NDArray[np.float32], _array(np.float32), _AS_LIST]
Float64Array = Annotated[NDArray[np.float64], _array(np.float64), _AS_LIST]
Int64Array = Annotated[NDArray[np.int64], _array(np.int64), _AS_LIST]
UInt8Array = Annotated[NDArray[np.uint8], _array(np.uint8), _AS_LIST]
BoolArray = Annotated[NDArray[np.bool_], _array(np.bool_), _AS_LIST]


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute sign(x) log(1 + |x|), which keeps order, sign and zero."""
    return np.sign(values) * np.log1p(np.abs(values))


class ColumnTransform(Section):
    """Selection of columns, and the affine map of each to numbers near zero: (f(x) - center) / scale."""

    columns: Int64Array
    """(kept,) increasing, the raw columns kept."""
    logarithmic: BoolArray
    """(kept,) f is `signed_log` where true, the identity elsewhere."""
    center: Float64Array
    """(kept,) the number subtracted from each column."""
    scale: Float64Array
    """(kept,) positive, the divisor of each column."""

    @model_validator(mode="after")
    def _check_arrays(self) -> Self:
        shapes = [array.shape for array in (self.columns, self.logarithmic, self.center, self.scale)]
        if len(set(shapes)) != 1 or self.columns.ndim != 1:
            raise ValueError(f"columns, logarithmic, center, scale: expected lists of one length, found {shapes}")
        if (np.diff(self.columns, prepend=-1) <= 0).any():
            raise ValueError(f"columns={self.columns.tolist()}: expected increasing column numbers")
        if not np.isfinite(self.center).all():
            raise ValueError(f"center={self.center.tolist()}: expected finite numbers")
        if not (np.isfinite(self.scale) & (self.scale > 0)).all():
            raise ValueError(f"scale={self.scale.tolist()}: expected positive numbers")
        return self

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform raw values (rows, raw columns) to (rows, kept) float32."""
        kept = values[:, self.columns].astype(np.float64, order="C")
        kept[:, self.logarithmic] = signed_log(kept[:, self.logarithmic])
        return ((kept - self.center) / self.scale).astype(np.float32)


class ColumnStatistics:
    """Fitting of a `ColumnTransform` on rows that come in parts, in memory that does not grow with their number.

    The range of a column is known only after the last part. Therefore scikit-learn's scalers are fitted both to each
    column and to its `signed_log`, and the transform keeps the parameters of one of the two.

    Args:
        scaling: standard (mean 0, variance 1) or minmax (0 to 1).
        log_range: columns whose values span more than this become logarithmic.
    """

    def __init__(self, scaling: Literal["standard", "minmax"], log_range: float) -> None:
        from sklearn.preprocessing import MinMaxScaler, StandardScaler

        self._log_range = log_range
        self._range = MinMaxScaler()
        self._standard = StandardScaler() if scaling == "standard" else None

    def update(self, values: NDArray[np.float32]) -> None:
        """Add rows, (rows, raw columns); the last bits of the result depend on the order of the parts."""
        raw = values.astype(np.float64)
        both = np.hstack([raw, signed_log(raw)])
        self._range.partial_fit(both)
        if self._standard is not None:
            self._standard.partial_fit(both)

    def transform(self) -> ColumnTransform:
        """Return the transform fitted on the rows added so far; columns that are constant in them are left out."""
        if self._standard is not None:
            center, scale = self._standard.mean_, self._standard.scale_
        else:
            center, scale = self._range.data_min_, self._range.data_range_
        span = self._range.data_range_[: len(center) // 2]
        columns = np.flatnonzero(span > 0)
        logarithmic = span[columns] > self._log_range
        chosen = columns + np.where(logarithmic, len(span), 0)
        return ColumnTransform(columns=columns, logarithmic=logarithmic, center=center[chosen], scale=scale[chosen])
