"""The interface of baselines: arrays, saved as they are, that score configurations; and the two simplest ones."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hlorank.files import DataError
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS
from hlorank.models.baselines.pooled_features import PooledGraph


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """A scorer of configurations, each independently of the others; every field is an array."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], columns: int) -> Self:
        """Make a predictor from its arrays, as `vars` returns them.

        Args:
            arrays: the fields by name.
            columns: number of pooled features.

        Raises:
            DataError: `arrays` are not the fields, or `check` fails.
        """
        names = {field.name for field in fields(cls)}
        if arrays.keys() != names:
            raise DataError("weights", f"the arrays {sorted(names)}", sorted(arrays))
        predictor = cls(**arrays)
        predictor.check(columns)
        return predictor

    @abstractmethod
    def check(self, columns: int) -> None:
        """Check that every graph of this many pooled columns can be scored.

        Raises:
            DataError: an array has a wrong dtype or shape, or a value out of range.
        """

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that a configuration needs while it is scored, besides its pooled features."""
        return 0

    @abstractmethod
    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score some distinct configurations.

        Args:
            graph: the graph.
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations,) float64, larger = slower.
        """

    @abstractmethod
    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the inputs of `score`, with the same arguments: (configurations, width) float64."""


def check_array(name: str, array: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Check the dtype and shape of an array.

    Raises:
        DataError: `array` has another dtype or shape.
    """
    if array.dtype != dtype or array.shape != shape:
        expected = f"{np.dtype(dtype)} of shape {shape}"
        raise DataError(name, expected, f"{array.dtype} of shape {array.shape}")


def check_values(name: str, valid: NDArray[np.bool_], expected: str) -> None:
    """Check the values of an array.

    Args:
        name: the name of the array.
        valid: mask of the values that are allowed.
        expected: the allowed values, in words.

    Raises:
        DataError: a value is not allowed.
    """
    if not valid.all():
        raise DataError(name, expected, f"others, first at {np.argmin(valid)}")


@dataclass(frozen=True, eq=False)
class RandomRanker(Predictor):
    """Uniform random scores, which depend on the seed, the graph's name and the number of the configuration only.

    Attributes:
        seed: (1,) int64, from 0.
    """

    seed: NDArray[np.int64]

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw (configurations,) float64 in [0, 1)."""
        rng = np.random.default_rng([int(self.seed[0]), zlib.crc32(graph.name.encode())])
        scores: NDArray[np.float64] = rng.random(rows.max(initial=-1) + 1)[rows]
        return scores

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scores: (configurations, 1) float64."""
        return self.score(graph, rows)[:, None]

    def check(self, columns: int) -> None:  # noqa: ARG002 - any graph can be scored
        """Check the seed.

        Raises:
            DataError: the seed is not a whole number of at least 0.
        """
        check_array("seed", self.seed, np.int64, (1,))
        check_values("seed", self.seed >= 0, "a number of at least 0")


@dataclass(frozen=True, eq=False)
class Linear(Predictor):
    """Weighted sum: score = sum over columns of weight * x / scale, with x the pooled features of a configuration.

    Attributes:
        weight: (columns,) float64.
        scale: (columns,) float64, above 0.
    """

    weight: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def none(cls, columns: int) -> Linear:
        """Return weights of 0, with which every score is 0."""
        return cls(np.zeros(columns), np.ones(columns))

    @classmethod
    def of_column(cls, column: int, columns: int) -> Linear:
        """Return the predictor whose score is a single column."""
        return cls(np.eye(columns)[column], np.ones(columns))

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums: (configurations,) float64."""
        # The last bits of a matrix product would depend on the number of rows.
        summed: NDArray[np.float64] = self.embed(graph, rows).sum(axis=1)
        return summed

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the terms of the sums: (configurations, columns) float64."""
        return graph.rows(rows) * (self.weight / self.scale)

    def check(self, columns: int) -> None:
        """Check that every column has a weight and a scale.

        Raises:
            DataError: an array has a wrong length, a value is not finite, or a scale is not above 0.
        """
        for name, array in vars(self).items():
            check_array(name, array, np.float64, (columns,))
        check_values("weight", np.isfinite(self.weight), "finite numbers")
        check_values("scale", np.isfinite(self.scale) & (self.scale > 0), "finite numbers above 0")


@dataclass(frozen=True, eq=False)
class Analytical(Predictor):
    """Time of copies: score = sum of weight * bytes over the columns of `CopiedBytes`.

    Attributes:
        weight: (`COPY_COLUMNS`,) float64, at least 0, in ns for a byte.
    """

    weight: NDArray[np.float64]

    @classmethod
    def none(cls) -> Analytical:
        """Return weights of 0, with which every score is 0."""
        return cls(np.zeros(COPY_COLUMNS))

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums: (configurations,) float64."""
        summed: NDArray[np.float64] = self.embed(graph, rows).sum(axis=1)
        return summed

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the terms of the sums: (configurations, `COPY_COLUMNS`) float64."""
        return graph.copied(rows) * self.weight

    def check(self, columns: int) -> None:  # noqa: ARG002 - it reads no pooled features
        """Check the weights.

        Raises:
            DataError: the array has a wrong length, or a value is not finite or below 0.
        """
        check_array("weight", self.weight, np.float64, (COPY_COLUMNS,))
        check_values("weight", np.isfinite(self.weight) & (self.weight >= 0), "finite numbers of at least 0")
