"""Features of configurations pooled over a graph's nodes, for models without message passing."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.data.configurations import LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, column_blocks, in_chunks
from hlorank.featurize.relayout import MOVES
from hlorank.models.baselines.copied_bytes import CopiedBytes
from hlorank.models.graph_inputs import InputSizes

_CHUNK_BYTES = 16 * 2**20
_VALUES = np.arange(LAYOUT_MIN, LAYOUT_MAX + 1)
_CODE_BYTES = 32  # temporary arrays for each configurable node of a configuration
_MAX_REFERENCES = 1000  # configurations that others are compared with


def pooled_columns(sizes: InputSizes) -> int:
    """Return the number of columns of `PooledGraph.rows` for graphs of these sizes."""
    if sizes.kind == "tile":
        return sizes.tile_columns + _of_nodes(sizes)
    return changed_column(sizes) + _of_nodes(sizes) + MOVES


def changed_column(sizes: InputSizes) -> int:
    """Return the column of `PooledGraph.rows` with the rank by changed configurable nodes, for layout graphs."""
    return _of_nodes(sizes) + LAYOUT_VALUES * len(_VALUES)


def _of_nodes(sizes: InputSizes) -> int:
    return 1 + sizes.opcodes + sizes.node_columns


class PooledGraph:
    """Features of a graph's distinct configurations, without message passing.

    - Of the graph: log(1 + nodes), the share of each opcode, the mean of the numeric node features.
    - Of a layout configuration: the frequency of each value at each of its 18 positions, the share of nodes that it
      changes, the same by opcode, and the sum of the numeric features of the changed nodes. A node is changed if its
      layout is not its most frequent one among the graph's distinct configurations, which for `default` search and for
      measured data is mostly the compiler's own. Then the sums of what copies to the layouts move. Each of them as its
      rank among the graph's configurations, in [0, 1]: the share of those that have less, and half of those that have
      as much, of all configurations or of 1,000 of them.
    - Of a tile configuration: its features.
    """

    def __init__(self, graph: GraphFeatures, sizes: InputSizes) -> None:
        self._graph, self._sizes = graph, sizes

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._graph.name

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute (configurations, `pooled_columns`) float32 of distinct configurations, each independently."""
        configurations, first = self._graph.configurations, _of_nodes(self._sizes)
        result = np.empty((len(rows), pooled_columns(self._sizes)), dtype=np.float32)
        result[:, :first] = self._of_graph
        if not isinstance(configurations, LayoutFeatures):
            result[:, first:] = configurations.feat[rows]
            return result
        ordered = self._ordered
        for part, column in zip(self._layouts(rows).T, range(first, result.shape[1]), strict=True):
            below, up_to = (ordered[:, column - first].searchsorted(part, side) for side in ("left", "right"))
            result[:, column] = (below + up_to) / (2 * len(ordered))
        return result

    @cached_property
    def copied(self) -> CopiedBytes:
        """Function of distinct layout configurations to the bytes that they copy."""
        assert isinstance(self._graph.configurations, LayoutFeatures)
        return CopiedBytes(self._graph.configurations)

    @cached_property
    def _of_graph(self) -> NDArray[np.float32]:
        graph = self._graph
        shares = np.bincount(graph.opcode, minlength=self._sizes.opcodes) / graph.nodes
        means = graph.node_feat.mean(axis=0, dtype=np.float64)
        return np.concatenate([[np.log1p(graph.nodes)], shares, means]).astype(np.float32)

    @cached_property
    def _layouts(self) -> _PooledLayouts:
        return _PooledLayouts(self._graph, self._sizes.opcodes)

    @cached_property
    def _ordered(self) -> NDArray[np.float32]:
        count = self._graph.distinct
        references = np.linspace(0, count - 1, min(count, _MAX_REFERENCES)).round().astype(np.int64)
        return np.sort(self._layouts(references), axis=0)


class _PooledLayouts:
    """The counts and sums of layout configurations, whose ranks are features."""

    def __init__(self, graph: GraphFeatures, opcodes: int) -> None:
        layouts = graph.configurations
        assert isinstance(layouts, LayoutFeatures)
        self._codes = layouts.codes
        one_hot = layouts.codebook[:, :, None] == _VALUES
        self._one_hot = one_hot.reshape(len(one_hot), LAYOUT_VALUES * len(_VALUES)).astype(np.float64)
        self._usual = _most_frequent(layouts)
        self._moves = np.asarray(layouts.moves, dtype=np.float64)
        nodes = layouts.node_ids
        opcode = np.eye(opcodes)[graph.opcode[nodes]]
        self._of_node = np.hstack([np.ones_like(opcode[:, :1]), opcode, graph.node_feat[nodes]], dtype=np.float64)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return in_chunks(self._pooled, rows, _CHUNK_BYTES // (_CODE_BYTES * max(1, self._codes.shape[1])))

    def _pooled(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        # Sparse: independent of the codebook's length, and each row is summed in the order of its nodes. Sums of
        # float64 that differ only in their order are equal as float32, and so have the same rank.
        codes = np.asarray(self._codes[rows])
        count, nodes = codes.shape
        place = csr_array(
            (np.ones(codes.size), codes.ravel().astype(np.int32), nodes * np.arange(count + 1)),
            shape=(count, len(self._one_hot)),
        )
        changed = csr_array((codes != self._usual).astype(np.float64))
        return np.hstack([place @ self._one_hot, changed @ self._of_node, place @ self._moves], dtype=np.float32)


def _most_frequent(layouts: LayoutFeatures) -> NDArray[np.int64]:
    """Return the most frequent code of each configurable node, the smallest of those that tie."""
    usual = [np.bincount(column).argmax() for _, block in column_blocks(layouts.codes) for column in block]
    return np.array(usual, dtype=np.int64)
