"""Boosted regression trees on pooled features, as plain arrays that can be saved without pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Predictor, check_array, check_values

_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("root", "feature", "left", "right"), np.int32),
    **dict.fromkeys(("threshold", "value", "base"), np.float64),
}
_TREE_BYTES = 64  # memory of a configuration while it is scored, for each tree


@dataclass(frozen=True, eq=False)
class Trees(Predictor):
    """Sum of regression trees. The nodes of all trees are in one array; children come after their parent.

    Attributes:
        root: (trees,) int32, the first node of each tree.
        feature: (nodes,) int32, the column that a node compares; 0 for a leaf.
        threshold: (nodes,) float64; the next node of a row is `left` if its value is at most this, else `right`.
        left: (nodes,) int32; for a leaf its own number.
        right: (nodes,) int32; for a leaf its own number.
        value: (nodes,) float64, the summand of a leaf; 0 for other nodes.
        base: (1,) float64, a constant summand.
    """

    root: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float64]
    base: NDArray[np.float64]

    @classmethod
    def none(cls) -> Trees:
        """Return no trees, with which every score is 0."""
        return cls(**{name: np.zeros(int(name == "base"), dtype) for name, dtype in _DTYPES.items()})

    def first(self, count: int) -> Trees:
        """Return the first `count` trees."""
        nodes = self.root[count] if count < len(self.root) else len(self.value)
        cut = {name: array[: count if name == "root" else nodes] for name, array in vars(self).items()}
        return Trees(**cut | {"base": self.base})

    def staged(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute the sums over the first 0, 1, 2, ... trees, in the order of the trees.

        Args:
            x: (rows, columns).

        Returns:
            (rows, trees + 1).
        """
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
        """Bytes of memory that a configuration needs while it is scored, besides its pooled features."""
        return _TREE_BYTES * len(self.root)

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the sums over all trees: (configurations,) float64."""
        return self.staged(graph.rows(rows))[:, -1]

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the pooled features: (configurations, columns) float64."""
        return graph.rows(rows).astype(np.float64)

    def check(self, columns: int) -> None:
        """Check that every row of this many columns reaches a leaf of each tree.

        Raises:
            DataError: an array has a wrong dtype or shape, or contains a node or column out of range.
        """
        nodes = len(self.value)
        for name, array in vars(self).items():
            check_array(name, array, _DTYPES[name], {"root": (len(self.root),), "base": (1,)}.get(name, (nodes,)))
        own = np.arange(nodes)
        leaf = (self.left == own) & (self.right == own)
        inner = (np.minimum(self.left, self.right) > own) & (np.maximum(self.left, self.right) < nodes)
        check_values("root", (self.root >= 0) & (self.root < nodes), f"nodes in 0..{nodes - 1}")
        check_values("feature", (self.feature >= 0) & (self.feature < columns), f"columns in 0..{columns - 1}")
        check_values("left, right", leaf | inner, "later nodes, or twice the node itself")
        check_values("threshold, value", np.isfinite(self.threshold) & np.isfinite(self.value), "finite numbers")
        check_values("base", np.isfinite(self.base), "finite numbers")
