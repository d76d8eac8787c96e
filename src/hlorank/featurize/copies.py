"""Tensors whose layouts depend on a configuration, and their uses, between which layout assignment may insert copies.

XLA's layout assignment propagates the layouts that configured operations demand, and inserts a copy where a tensor has
another layout than its user demands (`layout_assignment.h` of openxla/xla). Elementwise operations and transposes take
any layout. Here, as a simplification, the results of all other operations are row-major, XLA's default, and they demand
no layout of their operands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, element_bytes
from hlorank.hlo.node_features import CONFIGURABLE, DIMENSIONS, OPCODES

_TRANSPOSE, _RESHAPE = OPCODES["transpose"], OPCODES["reshape"]
# Operations whose result may have the shape of an operand, but not each element where the operand has it.
_MOVING = [
    *(OPCODES[name] for name in (*CONFIGURABLE, "reverse", "sort", "copy", "gather", "scatter", "concatenate", "pad")),
    *(OPCODES[name] for name in ("dynamic-slice", "dynamic-update-slice", "slice", "reduce", "reduce-window")),
    *(OPCODES[name] for name in ("select-and-scatter", "iota", "parameter", "constant", "tuple", "get-tuple-element")),
]

COLUMN, FLEXIBLE, LAST, ITEM_BYTES = range(4)
AXES, SHAPE = slice(4, 4 + LAYOUT_DIMS), slice(4 + LAYOUT_DIMS, 4 + 2 * LAYOUT_DIMS)
"""Columns of the tensors that `copy_tensors` returns."""


def copy_tensors(graph: Graph, node_ids: Int64, tensors: Int64) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the tensors whose layouts depend on a configuration, and their uses.

    Args:
        graph: the whole graph.
        node_ids: (configurable nodes,) int64.
        tensors: (configurable nodes, 3) int64, the nodes of output, input and kernel, -1 for none.

    Returns:
        (tensors, 16) int32, in topological order: the number of the configurable node whose output it is, or -1; 1 if
        it takes any layout; 1 if nothing uses it; the bytes of an element; of a transpose the operand's dimension that
        each dimension is, else 0 to 5; and its dimensions. And (uses, 3) int32, sorted: the tensor, the tensor that is
        computed from it, and the slot, 1 for input and 2 for kernel of a configurable node, 0 for an operation that
        takes any layout.
    """
    shape = _whole_numbers(graph.node_feat[:, DIMS])
    axes = np.tile(np.arange(LAYOUT_DIMS, dtype=np.int32), (graph.nodes, 1))
    configured = np.full(graph.nodes, -1, dtype=np.int32)
    configured[node_ids] = np.arange(len(node_ids))
    users, operands = graph.edge_index.T

    transposes = (graph.node_opcode == _TRANSPOSE) & (configured < 0) & (np.bincount(users, minlength=graph.nodes) == 1)
    known = transposes[users]
    known[known] = _set_axes(graph, axes, shape, *graph.edge_index[known].T)
    elementwise = ~np.isin(graph.node_opcode, [*_MOVING, _TRANSPOSE]) & (configured < 0)
    takes_any = known | (elementwise[users] & (shape[users] == shape[operands]).all(axis=1))

    fixed = [(tensors[:, slot], node_ids, np.full_like(node_ids, slot)) for slot in (1, 2)]
    uses = np.concatenate([np.stack(one, axis=1) for one in fixed])
    reshaped = (uses[:, 2] == 2) & (graph.node_opcode[uses[:, 1]] == _RESHAPE)
    uses = uses[(uses[:, 0] >= 0) & ~reshaped]
    any_layout = np.stack([operands, users, np.zeros_like(users)], axis=1)[takes_any]
    ends = configured >= 0
    ends[uses[:, 0]] = True
    any_layout = any_layout[_joined(graph.nodes, any_layout, ends)]
    uses = np.unique(np.concatenate([uses, any_layout]), axis=0)

    nodes = np.unique(np.concatenate([node_ids, uses[:, :2].ravel()]))
    flexible = np.zeros(graph.nodes, dtype=bool)
    flexible[any_layout[:, 1]] = True
    scalars = [configured, flexible, np.bincount(operands, minlength=graph.nodes) == 0, element_bytes(graph.node_feat)]
    rows = [np.stack([one[nodes] for one in scalars], axis=1), axes[nodes], shape[nodes]]
    uses[:, :2] = np.searchsorted(nodes, uses[:, :2])
    return np.hstack(rows).astype(np.int32), uses.astype(np.int32)


def _whole_numbers(columns: Float32) -> NDArray[np.int32]:
    """Return columns as int32, with numbers beyond 0 and 2^30, which only a damaged file has, replaced by these."""
    return np.clip(columns, 0, 2**30).astype(np.int32)


def _set_axes(
    graph: Graph, axes: NDArray[np.int32], shape: NDArray[np.int32], users: Int64, operands: Int64
) -> NDArray[np.bool_]:
    """Set the axes of transposes, and return of which the features say them."""
    read = _whole_numbers(graph.node_feat[users, DIMENSIONS.start : DIMENSIONS.stop])
    unused = np.arange(LAYOUT_DIMS) >= (shape[users] > 0).sum(axis=1, keepdims=True)
    read = np.where(unused, np.arange(LAYOUT_DIMS, dtype=np.int32), read)
    known = np.asarray((np.sort(read, axis=1) == np.arange(LAYOUT_DIMS)).all(axis=1))
    moved = np.take_along_axis(shape[operands], np.where(known[:, None], read, 0), axis=1)
    known &= (shape[users] == moved).all(axis=1)
    axes[users[known]] = read[known]
    return known


def _joined(nodes: int, uses: Int64, ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which uses of operations that take any layout can pass one from or to some ends: (uses,) bool.

    Args:
        nodes: number of nodes.
        uses: (uses, 3) int64, of operations that take any layout.
        ends: (nodes,) bool, the nodes whose layouts are configured, or demanded by a configured node.
    """
    passing = ends.copy()
    passing[uses[:, 1]] = True  # another tensor has its own layout
    pairs = uses[passing[uses[:, 0]], :2].T
    links = coo_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(nodes, nodes))
    _, component = connected_components(links, directed=False)
    return np.isin(component[uses[:, 1]], component[ends])
