"""Predictors of the baselines: arrays, saved as they are, that score configurations."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import check_array
from hlorank.files import DataError
from hlorank.models.baselines.pooled_features import COPY_COLUMNS, PooledGraph

_TREE_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("root", "feature", "left", "right"), np.int32),
    **dict.fromkeys(("threshold", "value", "base"), np.float64),
}
_TREE_BYTES = 64  # memory of a configuration while it is scored, for each tree


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """A scorer of configurations, each independently of the others; every field is an array."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], columns: int) -> Self:
        """Make a predictor for this number of pooled columns from its fields by name; other fields are a DataError."""
        names = {field.name for field in fields(cls)}
        if arrays.keys() != names:
            raise DataError("weights", f"the arrays {sorted(names)}", sorted(arrays))
        predictor = cls(**arrays)
        predictor.check(columns)
        return predictor

    @abstractmethod
    def check(self, columns: int) -> None:
        """Check that every graph of this many pooled columns can be scored; a DataError names the wrong array."""

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that a configuration needs while it is scored, besides its pooled features."""
        return 0

    @abstractmethod
    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score distinct configurations by their numbers: (configurations,) float64, larger = slower."""


def check_values(name: str, valid: NDArray[np.bool_], expected: str) -> None:
    """Raise DataError unless the mask `valid` of the values of an array is true for all."""
    if not valid.all():
        raise DataError(name, expected, f"others, first at {np.argmin(valid)}")


@dataclass(frozen=True, eq=False)
class RandomRanker(Predictor):
    """Uniform random scores, which depend on the seed, the graph's name and the number of the configuration only."""

    seed: NDArray[np.int64]  # (1,), from 0

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw (configurations,) float64 in [0, 1)."""
        rng = np.random.default_rng([int(self.seed[0]), zlib.crc32(graph.name.encode())])
        return np.asarray(rng.random(rows.max(initial=-1) + 1)[rows])

    def check(self, columns: int) -> None:  # noqa: ARG002 - any graph can be scored
        """Check the seed."""
        check_array("seed", self.seed, np.int64, (1,))
        check_values("seed", self.seed >= 0, "a number of at least 0")


@dataclass(frozen=True, eq=False)
class Linear(Predictor):
    """Weighted sum: score = sum over columns of weight * x / scale, with x the pooled features of a configuration."""

    weight: NDArray[np.float64]  # (columns,)
    scale: NDArray[np.float64]  # (columns,), above 0

    @classmethod
    def of_column(cls, column: int, columns: int) -> Linear:
        """Return the predictor whose score is a single column."""
        return cls(np.eye(columns)[column], np.ones(columns))

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums: (configurations,) float64."""
        # The last bits of a matrix product would depend on the number of rows.
        return np.asarray((graph.rows(rows) * (self.weight / self.scale)).sum(axis=1))

    def check(self, columns: int) -> None:
        """Check that every column has a weight and a scale."""
        for name, array in vars(self).items():
            check_array(name, array, np.float64, (columns,))
        check_values("weight", np.isfinite(self.weight), "finite numbers")
        check_values("scale", np.isfinite(self.scale) & (self.scale > 0), "finite numbers above 0")


@dataclass(frozen=True, eq=False)
class Analytical(Predictor):
    """Time that layouts cost: score = sum of weight * cost over the columns of `PooledGraph.costs`."""

    weight: NDArray[np.float64]  # (`cost_columns`,), at least 0, in ns for a byte

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums: (configurations,) float64."""
        return np.asarray((graph.costs(rows) * self.weight).sum(axis=1))

    def check(self, columns: int) -> None:  # noqa: ARG002 - it reads no pooled features
        """Check the weights."""
        if self.weight.size not in (1, COPY_COLUMNS):
            raise DataError("weight", f"1 or {COPY_COLUMNS} numbers; train the model again", self.weight.size)
        check_array("weight", self.weight, np.float64, (self.weight.size,))
        check_values("weight", np.isfinite(self.weight) & (self.weight >= 0), "finite numbers of at least 0")


@dataclass(frozen=True, eq=False)
class Trees(Predictor):
    """Sum of regression trees. The nodes of all trees are in one array; children come after their parent."""

    root: NDArray[np.int32]  # (trees,), the first node of each tree
    feature: NDArray[np.int32]  # (nodes,), the column that a node compares; 0 for a leaf
    threshold: NDArray[np.float64]  # (nodes,); the next node is `left` if a row's value is at most this, else `right`
    left: NDArray[np.int32]  # (nodes,); for a leaf its own number
    right: NDArray[np.int32]  # (nodes,); for a leaf its own number
    value: NDArray[np.float64]  # (nodes,), the summand of a leaf; 0 for other nodes
    base: NDArray[np.float64]  # (1,), a constant summand

    def first(self, count: int) -> Trees:
        """Return the first `count` trees."""
        nodes = self.root[count] if count < len(self.root) else len(self.value)
        cut = {name: array[: count if name == "root" else nodes] for name, array in vars(self).items()}
        return Trees(**cut | {"base": self.base})

    def staged(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute (rows, trees + 1), the sums over the first 0, 1, 2, ... trees for (rows, columns), in their order."""
        count, trees = len(x), len(self.root)
        values, first = x.ravel(), np.repeat(np.arange(count) * x.shape[1], trees)
        node = np.tile(self.root, count)
        inner = np.flatnonzero(self.left[node] != node)  # pairs of a row and a tree that have not reached a leaf
        while len(inner):
            at = node[inner]
            below = values[first[inner] + self.feature[at]] <= self.threshold[at]
            node[inner] = at = np.where(below, self.left[at], self.right[at])
            inner = inner[self.left[at] != at]
        start = np.broadcast_to(self.base, (count, 1))
        return np.cumsum(np.hstack([start, self.value[node].reshape(count, trees)]), axis=1)

    @property
    def row_bytes(self) -> int:
        """Bytes of a configuration while it is scored."""
        return _TREE_BYTES * len(self.root)

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums over all trees: (configurations,) float64."""
        return self.staged(graph.rows(rows))[:, -1]

    def check(self, columns: int) -> None:
        """Check that every row of this many columns reaches a leaf of each tree."""
        nodes = len(self.value)
        for name, array in vars(self).items():
            check_array(name, array, _TREE_DTYPES[name], {"root": (len(self.root),), "base": (1,)}.get(name, (nodes,)))
        own = np.arange(nodes)
        leaf = (self.left == own) & (self.right == own)
        inner = (np.minimum(self.left, self.right) > own) & (np.maximum(self.left, self.right) < nodes)
        check_values("root", (self.root >= 0) & (self.root < nodes), f"nodes in 0..{nodes - 1}")
        check_values("feature", (self.feature >= 0) & (self.feature < columns), f"columns in 0..{columns - 1}")
        check_values("left, right", leaf | inner, "later nodes, or twice the node itself")
        check_values("threshold, value", np.isfinite(self.threshold) & np.isfinite(self.value), "finite numbers")
        check_values("base", np.isfinite(self.base), "finite numbers")
