"""Features of configurations pooled over a graph's nodes, for models that see no edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.featurize.distinct import column_blocks
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.graph import LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.models.inputs import InputSizes

_CHUNK_BYTES = 16 * 2**20
_VALUES = np.arange(LAYOUT_MIN, LAYOUT_MAX + 1)
_CODE_BYTES = 32  # of temporary arrays, for each configurable node of a configuration


def pooled_columns(sizes: InputSizes) -> int:
    """The number of columns of `PooledGraph.rows` for graphs of these sizes."""
    of_nodes = 1 + sizes.opcodes + sizes.node_columns
    return of_nodes + (sizes.tile_columns if sizes.kind == "tile" else LAYOUT_VALUES * len(_VALUES) + of_nodes)


class PooledGraph:
    """What a model without message passing knows of the distinct configurations of a graph.

    Of the graph: log(1 + nodes), the share of each opcode, the mean of the numeric node features. Of a layout
    configuration: how often each value stands in each of its 18 places, as a share of the configurable nodes; the
    share of these nodes that it changes, overall and by opcode; and the sum of the numeric features of the changed
    nodes, as a share of all configurable ones. A node is changed where its layout is not its most frequent one among
    the graph's distinct configurations, which for `default` search and for measured data is the compiler's own. Of a
    tile configuration: its features.

    Args:
        graph: the graph.
        sizes: those of its collection.
    """

    def __init__(self, graph: GraphFeatures, sizes: InputSizes) -> None:
        self._columns = pooled_columns(sizes)
        shares = np.bincount(graph.opcode, minlength=sizes.opcodes) / graph.nodes
        means = graph.node_feat.mean(axis=0, dtype=np.float64)
        self._of_graph = np.concatenate([[np.log1p(graph.nodes)], shares, means]).astype(np.float32)
        self._configurations = graph.configurations
        if isinstance(graph.configurations, LayoutFeatures):
            layouts = graph.configurations
            one_hot = layouts.codebook[:, :, None] == _VALUES
            self._one_hot = one_hot.reshape(len(one_hot), LAYOUT_VALUES * len(_VALUES)).astype(np.float32)
            self._usual = _most_frequent(layouts)
            nodes = layouts.node_ids
            opcode = np.eye(sizes.opcodes, dtype=np.float32)[graph.opcode[nodes]]
            self._of_node = np.hstack([np.ones_like(opcode[:, :1]), opcode, graph.node_feat[nodes]], dtype=np.float32)

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The features of some distinct configurations, each row independent of the others.

        Args:
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations, `pooled_columns`) float32.
        """
        configurations, first = self._configurations, len(self._of_graph)
        result = np.empty((len(rows), self._columns), dtype=np.float32)
        result[:, :first] = self._of_graph
        if not isinstance(configurations, LayoutFeatures):
            result[:, first:] = configurations.feat[rows]
            return result
        step = max(1, _CHUNK_BYTES // (_CODE_BYTES * max(1, len(self._of_node))))
        for start in range(0, len(rows), step):
            chunk = slice(start, start + step)
            result[chunk, first:] = self._pooled(np.asarray(configurations.codes[rows[chunk]]))
        return result

    def _pooled(self, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float32]:
        # Sparse, so that the codebook's length does not matter and each row is summed up in the order of its nodes.
        count, nodes = codes.shape
        place = csr_array(
            (np.ones(codes.size, np.float32), codes.ravel().astype(np.int32), nodes * np.arange(count + 1)),
            shape=(count, len(self._one_hot)),
        )
        changed = csr_array((codes != self._usual).astype(np.float32))
        pooled: NDArray[np.float32] = np.hstack([place @ self._one_hot, changed @ self._of_node])
        return pooled / np.float32(max(1, nodes))


def _most_frequent(layouts: LayoutFeatures) -> NDArray[np.int64]:
    """The code that each configurable node has most often, the smallest of those that tie."""
    usual = [np.bincount(column).argmax() for _, block in column_blocks(layouts.codes) for column in block]
    return np.array(usual, dtype=np.int64)
