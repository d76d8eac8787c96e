"""The transformation of numeric columns, fitted on the train split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hlorank.files import DataError

Scaling = Literal["standard", "minmax"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """sign(x) log(1 + |x|), which keeps order, sign and zero."""
    return np.sign(values) * np.log1p(np.abs(values))


@dataclass(frozen=True, eq=False)
class ColumnTransform:
    """Which columns are kept, and how each becomes a number near zero: (f(x) - center) / scale.

    Attributes:
        columns: (kept,) int64, increasing, the raw columns kept.
        logarithmic: (kept,) bool; f is `signed_log` where true, the identity elsewhere.
        center: (kept,) float64.
        scale: (kept,) float64, positive.

    Raises:
        DataError: lengths that differ, columns that do not increase, or a number out of range.
    """

    columns: NDArray[np.int64]
    logarithmic: NDArray[np.bool_]
    center: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __post_init__(self) -> None:
        shapes = [array.shape for array in (self.columns, self.logarithmic, self.center, self.scale)]
        if len(set(shapes)) != 1 or self.columns.ndim != 1:
            raise DataError("columns, logarithmic, center, scale", "lists of one length", shapes)
        if (np.diff(self.columns, prepend=-1) <= 0).any():
            raise DataError("columns", "increasing column numbers", self.columns.tolist())
        if not np.isfinite(self.center).all():
            raise DataError("center", "finite numbers", self.center.tolist())
        if not (np.isfinite(self.scale) & (self.scale > 0)).all():
            raise DataError("scale", "positive numbers", self.scale.tolist())

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transforms raw values (rows, raw columns) into (rows, kept) float32."""
        kept = values[:, self.columns].astype(np.float64, order="C")
        kept[:, self.logarithmic] = signed_log(kept[:, self.logarithmic])
        return ((kept - self.center) / self.scale).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain lists."""
        return {
            "columns": self.columns.tolist(),
            "logarithmic": self.logarithmic.tolist(),
            "center": self.center.tolist(),
            "scale": self.scale.tolist(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ColumnTransform:
        """The inverse of `to_json`.

        Raises:
            DataError: a key is missing, or a list holds something other than numbers in range.
        """
        try:
            columns = np.array(value["columns"], dtype=np.int64)
            logarithmic = np.array(value["logarithmic"], dtype=np.bool_)
            center, scale = (np.array(value[key], dtype=np.float64) for key in ("center", "scale"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError("columns", "lists columns, logarithmic, center, scale", repr(error)) from None
        return cls(columns, logarithmic, center, scale)


class ColumnStatistics:
    """Fits a `ColumnTransform` on rows that come in parts, in memory that does not grow with them.

    Whether a column is constant or wide-ranging is known only at the end; so scikit-learn's scalers see each column
    twice, as it is and as `signed_log` of it, and the transform takes the numbers of one of the two.

    Args:
        scaling: standard (mean 0, variance 1) or minmax (0 to 1).
        log_range: columns whose values span more than this become logarithmic.
    """

    def __init__(self, scaling: Scaling, log_range: float) -> None:
        from sklearn.preprocessing import MinMaxScaler, StandardScaler

        self._log_range = log_range
        self._range = MinMaxScaler()
        self._standard = StandardScaler() if scaling == "standard" else None

    def update(self, values: NDArray[np.float32]) -> None:
        """Adds rows, (rows, raw columns); the last bits of the result depend on the order of the parts."""
        plain = values.astype(np.float64)
        both = np.hstack([plain, signed_log(plain)])
        self._range.partial_fit(both)
        if self._standard is not None:
            self._standard.partial_fit(both)

    def transform(self) -> ColumnTransform:
        """The transform of what was added so far, without the columns that are constant in it."""
        if self._standard is not None:
            center, scale = self._standard.mean_, self._standard.scale_
        else:
            center, scale = self._range.data_min_, self._range.data_range_
        span = self._range.data_range_[: len(center) // 2]
        columns = np.flatnonzero(span > 0)
        logarithmic = span[columns] > self._log_range
        chosen = columns + np.where(logarithmic, len(span), 0)
        return ColumnTransform(columns, logarithmic, center[chosen], scale[chosen])
