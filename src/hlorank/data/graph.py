"""A program as a graph of tensor operations, validated on construction: every existing object is valid."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.files import DataError

NODE_FEATURES = 140
MAX_OPCODE = 120

# Limits of what is read from files, several times the largest of TpuGraphs.
MAX_NODES = 250_000
MAX_EDGES = 2_000_000
MAX_NAME = 200  # characters of the name of a graph, which is the name of its file

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


def check_name(name: str) -> None:
    """Raise DataError unless `name` can be a graph's name.

    Names are written to file names, CSV files, tables and HTML pages. DVC writes them into a script of its page, which
    `<!--<script>` would blank.
    """
    if not (0 < len(name) <= MAX_NAME and name.isprintable() and "<" not in name):
        raise DataError("name of the graph", f"at most {MAX_NAME} printable characters without <", repr(name))


def check_array(key: str, array: NDArray[Any], dtype: type, shape: tuple[int | None, ...]) -> None:
    """Raise DataError unless `array` has this dtype and shape (None = any length)."""
    if array.dtype != np.dtype(dtype):
        raise DataError(key, f"dtype {np.dtype(dtype).name}", array.dtype.name)
    wrong = array.ndim != len(shape) or any(w is not None and w != g for w, g in zip(shape, array.shape, strict=True))
    if wrong:
        wanted = "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
        raise DataError(key, f"shape {wanted}", array.shape)


def check_finite(key: str, array: Float32) -> None:
    """Raise DataError unless all numbers of `array` are finite."""
    finite = np.isfinite(array)
    if not finite.all():
        place = np.argwhere(~finite)[0].tolist()
        raise DataError(key, "finite numbers", f"{array[tuple(place)]} at {place}")


@dataclass(frozen=True, eq=False)
class Graph:
    """A program as a graph of tensor operations, nodes in topological order."""

    node_feat: Float32  # (nodes, 140), the official node features, padded with 0
    node_opcode: NDArray[np.uint8]  # (nodes,), 0 unknown, 1..120
    edge_index: Int64  # (edges, 2); in row [u, v], u consumes the output of v, so u > v
    node_splits: Int64  # (computations + 1,), boundaries of blocks of nodes, first 0, last `nodes`

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_opcode)

    def __post_init__(self) -> None:
        check_array("node_opcode", self.node_opcode, np.uint8, (None,))
        n = self.nodes
        if n == 0:
            raise DataError("node_opcode", "at least one node", "an empty graph")
        check_array("node_feat", self.node_feat, np.float32, (n, NODE_FEATURES))
        check_array("edge_index", self.edge_index, np.int64, (None, 2))
        check_array("node_splits", self.node_splits, np.int64, (None,))
        if (worst := int(self.node_opcode.max())) > MAX_OPCODE:
            raise DataError("node_opcode", f"opcodes in 0..{MAX_OPCODE}", worst)
        check_finite("node_feat", self.node_feat)
        self._check_edges(n)
        splits = self.node_splits
        if len(splits) < 2 or splits[0] != 0 or splits[-1] != n or (np.diff(splits) <= 0).any():
            raise DataError("node_splits", f"increasing boundaries from 0 to {n}", splits.tolist()[:20])

    def _check_edges(self, n: int) -> None:
        outside = (self.edge_index < 0) | (self.edge_index >= n)
        if outside.any():
            row = int(np.argwhere(outside)[0, 0])
            raise DataError("edge_index", f"node ids in 0..{n - 1}", f"{self.edge_index[row].tolist()} in row {row}")
        backward = self.edge_index[:, 0] <= self.edge_index[:, 1]
        if backward.any():
            row = int(np.argmax(backward))
            edge = self.edge_index[row].tolist()
            raise DataError("edge_index", "topological order (u > v in [u, v])", f"{edge} in row {row}")
