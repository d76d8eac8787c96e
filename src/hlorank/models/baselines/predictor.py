"""What all baselines are: arrays, which are saved as they are, and the scores that follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hlorank.files import DataError
from hlorank.models.baselines.pooled_features import PooledGraph


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """Scores configurations of a graph, each independently of the others; every field is an array."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], columns: int) -> Self:
        """The inverse of `vars`.

        Args:
            arrays: the fields by name.
            columns: of the pooled features.

        Raises:
            DataError: they are the arrays of something else.
        """
        names = {field.name for field in fields(cls)}
        if arrays.keys() != names:
            raise DataError("weights", f"the arrays {sorted(names)}", sorted(arrays))
        predictor = cls(**arrays)
        predictor.check(columns)
        return predictor

    @abstractmethod
    def check(self, columns: int) -> None:
        """Makes sure that every graph of this many pooled columns can be scored.

        Raises:
            DataError: an array has another dtype or shape, or a value that it must not have.
        """

    @property
    def row_bytes(self) -> int:
        """What a configuration takes of memory while it is scored, beside its pooled features."""
        return 0

    @abstractmethod
    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores some distinct configurations.

        Args:
            graph: the graph.
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations,) float64, larger = slower.
        """

    @abstractmethod
    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """What some distinct configurations are scored by: (configurations, width) float64; arguments of `score`."""


def check_array(name: str, array: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Makes sure that an array of a predictor is of this kind.

    Raises:
        DataError: it is not.
    """
    if array.dtype != dtype or array.shape != shape:
        expected = f"{np.dtype(dtype)} of shape {shape}"
        raise DataError(name, expected, f"{array.dtype} of shape {array.shape}")


def check_values(name: str, right: NDArray[np.bool_], expected: str) -> None:
    """Makes sure that all values of an array of a predictor are right.

    Raises:
        DataError: one is not.
    """
    if not right.all():
        raise DataError(name, expected, f"others, first at {np.argmin(right)}")
