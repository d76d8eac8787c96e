"""Features of configurations pooled over a graph's nodes, for models without message passing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.data.graph import LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.featurize.distinct import column_blocks
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.featurize.moves import MOVES
from hlorank.models.inputs import InputSizes

_CHUNK_BYTES = 16 * 2**20
_VALUES = np.arange(LAYOUT_MIN, LAYOUT_MAX + 1)
_CODE_BYTES = 32  # temporary arrays for each configurable node of a configuration


def pooled_columns(sizes: InputSizes) -> int:
    """Return the number of columns of `PooledGraph.rows` for graphs of these sizes."""
    if sizes.kind == "tile":
        return sizes.tile_columns + _of_nodes(sizes)
    return changed_column(sizes) + _of_nodes(sizes) + MOVES


def changed_column(sizes: InputSizes) -> int:
    """Return the column of `PooledGraph.rows` with the share of changed configurable nodes, for layout graphs."""
    return _of_nodes(sizes) + LAYOUT_VALUES * len(_VALUES)


def _of_nodes(sizes: InputSizes) -> int:
    return 1 + sizes.opcodes + sizes.node_columns


class PooledGraph:
    """Features of a graph's distinct configurations, without message passing.

    - Of the graph: log(1 + nodes), the share of each opcode, the mean of the numeric node features.
    - Of a layout configuration: the frequency of each value at each of its 18 positions, the share of nodes that it
      changes, the same by opcode, and the sum of the numeric features of the changed nodes; all divided by the number
      of configurable nodes. A node is changed if its layout is not its most frequent one among the graph's distinct
      configurations, which for `default` search and for measured data is mostly the compiler's own. Then the sums of
      what copies to the layouts move.
    - Of a tile configuration: its features.

    Args:
        graph: the graph.
        sizes: the sizes of its collection's inputs.
    """

    def __init__(self, graph: GraphFeatures, sizes: InputSizes) -> None:
        self._graph = graph
        self._sizes = sizes

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._graph.name

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the features of some distinct configurations, each independently of the others.

        Args:
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations, `pooled_columns`) float32.
        """
        configurations, first = self._graph.configurations, _of_nodes(self._sizes)
        result = np.empty((len(rows), pooled_columns(self._sizes)), dtype=np.float32)
        result[:, :first] = self._of_graph
        if not isinstance(configurations, LayoutFeatures):
            result[:, first:] = configurations.feat[rows]
            return result
        step = max(1, _CHUNK_BYTES // (_CODE_BYTES * max(1, len(configurations.node_ids))))
        for start in range(0, len(rows), step):
            chunk = slice(start, start + step)
            result[chunk, first:] = self._layouts(np.asarray(configurations.codes[rows[chunk]]))
        return result

    @cached_property
    def _of_graph(self) -> NDArray[np.float32]:
        graph = self._graph
        shares = np.bincount(graph.opcode, minlength=self._sizes.opcodes) / graph.nodes
        means = graph.node_feat.mean(axis=0, dtype=np.float64)
        return np.concatenate([[np.log1p(graph.nodes)], shares, means]).astype(np.float32)

    @cached_property
    def _layouts(self) -> _PooledLayouts:
        return _PooledLayouts(self._graph, self._sizes.opcodes)


class _PooledLayouts:
    """The features of layout configurations."""

    def __init__(self, graph: GraphFeatures, opcodes: int) -> None:
        layouts = graph.configurations
        assert isinstance(layouts, LayoutFeatures)
        one_hot = layouts.codebook[:, :, None] == _VALUES
        self._one_hot = one_hot.reshape(len(one_hot), LAYOUT_VALUES * len(_VALUES)).astype(np.float32)
        self._usual = _most_frequent(layouts)
        self._moves = layouts.moves
        nodes = layouts.node_ids
        opcode = np.eye(opcodes, dtype=np.float32)[graph.opcode[nodes]]
        self._of_node = np.hstack([np.ones_like(opcode[:, :1]), opcode, graph.node_feat[nodes]], dtype=np.float32)

    def __call__(self, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float32]:
        # Sparse: independent of the codebook's length, and each row is summed in the order of its nodes.
        count, nodes = codes.shape
        place = csr_array(
            (np.ones(codes.size, np.float32), codes.ravel().astype(np.int32), nodes * np.arange(count + 1)),
            shape=(count, len(self._one_hot)),
        )
        changed = csr_array((codes != self._usual).astype(np.float32))
        pooled = np.hstack([place @ self._one_hot, changed @ self._of_node]) / np.float32(max(1, nodes))
        return np.hstack([pooled, place @ self._moves], dtype=np.float32)


def _most_frequent(layouts: LayoutFeatures) -> NDArray[np.int64]:
    """Return the most frequent code of each configurable node, the smallest of those that tie."""
    usual = [np.bincount(column).argmax() for _, block in column_blocks(layouts.codes) for column in block]
    return np.array(usual, dtype=np.int64)
