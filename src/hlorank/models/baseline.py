"""The baseline: boosted regression trees on pooled features. Fitted trees are plain arrays; nothing is pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from hlorank.config import BaselineConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.io import DataError
from hlorank.models.folder import Spec, input_sizes, read_folder, save_folder
from hlorank.models.inputs import InputSizes
from hlorank.models.pooled import PooledGraph, pooled_columns

GRADIENT_BOOSTING = "gradient_boosting"
BASELINES = (GRADIENT_BOOSTING,)
"""Methods whose models are no cost models of `models.cost_model`."""

_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("root", "feature", "left", "right"), np.int32),
    **dict.fromkeys(("threshold", "value", "base"), np.float64),
}
# What a configuration takes of memory while it is scored, for each column and for each tree.
_COLUMN_BYTES, _TREE_BYTES = 8, 64


@dataclass(frozen=True, eq=False)
class Trees:
    """Regression trees whose values are summed, all their nodes one after the other; children follow their parent.

    Attributes:
        root: (trees,) int32, the first node of each tree.
        feature: (nodes,) int32, the column that a node looks at; 0 for a leaf.
        threshold: (nodes,) float64; a row goes left where its value is at most this, else right.
        left: (nodes,) int32; a leaf names itself, on both sides.
        right: (nodes,) int32.
        value: (nodes,) float64, what a leaf adds; 0 for the other nodes.
        base: (1,) float64, what no tree changes.
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
        """No trees: every score is 0."""
        return cls(**{name: np.zeros(int(name == "base"), dtype) for name, dtype in _DTYPES.items()})

    def first(self, count: int) -> Trees:
        """The first trees, `count` of them."""
        nodes = self.root[count] if count < len(self.root) else len(self.value)
        cut = {name: array[: count if name == "root" else nodes] for name, array in vars(self).items()}
        return Trees(**cut | {"base": self.base})

    def staged(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sums over the first 0, 1, 2, ... trees, added up one after the other.

        Args:
            x: (rows, columns).

        Returns:
            (rows, trees + 1).
        """
        count, trees = len(x), len(self.root)
        values, first = x.ravel(), np.repeat(np.arange(count) * x.shape[1], trees)
        node = np.tile(self.root, count)
        inner = np.flatnonzero(self.left[node] != node)  # the pairs of a row and a tree that are not at a leaf yet
        while len(inner):
            at = node[inner]
            below = values[first[inner] + self.feature[at]] <= self.threshold[at]
            node[inner] = at = np.where(below, self.left[at], self.right[at])
            inner = inner[self.left[at] != at]
        start = np.broadcast_to(self.base, (count, 1))
        return np.cumsum(np.hstack([start, self.value[node].reshape(count, trees)]), axis=1)

    def check(self, columns: int) -> None:
        """Makes sure that every row of this many columns reaches a leaf of each tree.

        Raises:
            DataError: an array has another dtype or shape, or names a node or a column that it must not.
        """
        nodes = len(self.value)
        for name, array in vars(self).items():
            shape = {"root": (len(self.root),), "base": (1,)}.get(name, (nodes,))
            if array.dtype != _DTYPES[name] or array.shape != shape:
                expected = f"{np.dtype(_DTYPES[name])} of shape {shape}"
                raise DataError(name, expected, f"{array.dtype} of shape {array.shape}")
        own = np.arange(nodes)
        leaf = (self.left == own) & (self.right == own)
        inner = (np.minimum(self.left, self.right) > own) & (np.maximum(self.left, self.right) < nodes)
        for name, right, expected in (
            ("root", (self.root >= 0) & (self.root < nodes), f"nodes in 0..{nodes - 1}"),
            ("feature", (self.feature >= 0) & (self.feature < columns), f"columns in 0..{columns - 1}"),
            ("left, right", leaf | inner, "later nodes, or twice the node itself"),
            ("threshold, value", np.isfinite(self.threshold) & np.isfinite(self.value), "finite numbers"),
        ):
            if not right.all():
                raise DataError(name, expected, f"others, first at {np.argmin(right)}")


@dataclass(frozen=True)
class BaselineSpec(Spec):
    """What a trained baseline is.

    Attributes:
        settings: what it was fitted with.
    """

    settings: BaselineConfig


class Baseline:
    """Trees that score the configurations of a graph by their pooled features.

    Args:
        trees: the trees.
        sizes: those of the collection.
    """

    def __init__(self, trees: Trees, sizes: InputSizes) -> None:
        self.trees = trees
        self.sizes = sizes

    def score(self, graph: GraphFeatures, memory_bytes: int) -> NDArray[np.float64]:
        """Scores all distinct configurations of a graph.

        Args:
            graph: the graph.
            memory_bytes: bound of what is held at once of features and trees; at least one configuration is.

        Returns:
            (distinct,) float64, larger = slower.
        """
        pooled = PooledGraph(graph, self.sizes)
        row_bytes = _COLUMN_BYTES * pooled_columns(self.sizes) + _TREE_BYTES * len(self.trees.root)
        step = max(1, memory_bytes // row_bytes)
        starts = range(0, graph.distinct, step)
        chunks = (np.arange(start, min(start + step, graph.distinct)) for start in starts)
        return np.concatenate([self.trees.staged(pooled.rows(rows))[:, -1] for rows in chunks])

    def embed(self, graph: GraphFeatures) -> NDArray[np.float64]:
        """The pooled features of all distinct configurations of a graph: (distinct, `pooled_columns`) float64."""
        return PooledGraph(graph, self.sizes).rows(np.arange(graph.distinct)).astype(np.float64)


def save_baseline(folder: Path, trees: Trees, spec: BaselineSpec) -> None:
    """Writes a baseline."""
    save_folder(folder, save(dict(vars(trees))), spec)


def load_baseline(folder: Path) -> tuple[Baseline, BaselineSpec]:
    """Reads what `save_baseline` wrote.

    Raises:
        DataError: a file is missing or damaged, or the trees do not fit the specification.
    """
    spec, path = read_folder(folder, BaselineSpec)
    arrays, sizes = load_file(path), input_sizes(spec.features)
    if arrays.keys() != _DTYPES.keys():
        raise DataError("weights", f"the arrays {sorted(_DTYPES)}", sorted(arrays), file=path)
    trees = Trees(**arrays)
    try:
        trees.check(pooled_columns(sizes))
    except DataError as error:
        raise error.in_file(path) from None
    return Baseline(trees, sizes), spec
