"""Order of the operands of configurable nodes, which the edges do not record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, node_ranks
from hlorank.hlo.node_features import (
    BATCH_GROUPS,
    CONVOLUTION_INPUT,
    CONVOLUTION_KERNEL,
    CONVOLUTION_KERNEL_SPATIAL,
    CONVOLUTION_OUTPUT,
    FEATURE_GROUPS,
    OPCODES,
    WINDOW,
    Columns,
)


def operand_pairs(graph: Graph, node_ids: Int64, dims: Int64) -> Int64:
    """Infer the first two operands of configurable nodes, by a heuristic.

    Edges are a set sorted by node, which does not record the order of the operands. Nodes are numbered in post-order of
    the operands. So the first operand has the smaller number, unless an earlier node used the second operand already,
    as the forward pass of a training step uses the weights. The operand of smaller number is therefore taken as the
    first, unless only the other order fits the dimensions that the layouts name and the shape of the result. A single
    operand is taken as both: the node is a product of a tensor with itself, or a reshape, whose second operand has no
    layout.

    If both orders fit, the wrong one may be chosen: dot(x, y) and dot(y, x) of square matrices are not distinguishable.

    Args:
        graph: the whole graph.
        node_ids: (configurable nodes,) int64.
        dims: (configurable nodes, 2) int64, minimum number of dimensions of the first and the second operand.

    Returns:
        (configurable nodes, 2) int64, -1 for a node without operands; of more than two operands, the two of smallest
        number.
    """
    users, operands = np.unique(graph.edge_index[np.isin(graph.edge_index[:, 0], node_ids)], axis=0).T
    start, stop = (np.searchsorted(users, node_ids, side=side) for side in ("left", "right"))
    columns = np.stack([start, np.minimum(start + 1, stop - 1)], axis=1)
    pairs = np.where((stop > start)[:, None], np.append(operands, -1)[columns], -1)
    two = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    ascending, descending = (_fit(graph, node_ids[two], ends, dims[two]) for ends in (pairs[two], pairs[two, ::-1]))
    swap = two[~ascending & descending]
    pairs[swap] = pairs[swap, ::-1]
    return pairs


def _fit(graph: Graph, nodes: Int64, pairs: Int64, dims: Int64) -> NDArray[np.bool_]:
    """Return whether each node can have these operands in this order: (nodes,) bool."""
    ranks = node_ranks(graph.node_feat)
    fits = np.asarray((dims <= ranks[pairs]).all(axis=1))
    opcodes, shapes = graph.node_opcode[nodes], graph.node_feat[:, DIMS]
    convolutions, dots = (np.flatnonzero(opcodes == OPCODES[name]) for name in ("convolution", "dot"))
    left, right = pairs[convolutions].T
    fits[convolutions] &= _convolutions_fit(graph.node_feat[nodes[convolutions]], shapes[left], shapes[right])
    for dot in dots:
        fits[dot] &= _dot_fits(*(shapes[node, : ranks[node]].tolist() for node in (nodes[dot], *pairs[dot])))
    return fits


def _convolutions_fit(feat: Float32, left: Float32, right: Float32) -> NDArray[np.bool_]:
    """Return whether features (convolutions, 140) fit shapes (convolutions, 6) of operands: (convolutions,) bool."""

    def values(columns: Columns) -> Float32:
        return feat[:, columns.start : columns.start + columns.width]

    def sizes(shapes: Float32, axes: Columns) -> Float32:
        inside = np.clip(values(axes), 0, LAYOUT_DIMS - 1).astype(np.int64)
        return np.take_along_axis(shapes, inside, axis=1)

    batch, feature = sizes(left, CONVOLUTION_INPUT).T
    kernel_input, kernel_output = sizes(right, CONVOLUTION_KERNEL).T
    output_batch, output_feature = sizes(feat[:, DIMS], CONVOLUTION_OUTPUT).T
    spatial = sizes(right, CONVOLUTION_KERNEL_SPATIAL)
    window = values(WINDOW[0])[:, : spatial.shape[1]]
    # Modules older than groups have 0 of them, which means one.
    batch_groups, feature_groups = (np.maximum(values(groups)[:, 0], 1) for groups in (BATCH_GROUPS, FEATURE_GROUPS))
    fits: NDArray[np.bool_] = (
        (batch == output_batch * batch_groups)
        & (feature == kernel_input * feature_groups)
        & (kernel_output == output_feature)
        & ((spatial == window) | (window == 0)).all(axis=1)
    )
    return fits


def _dot_fits(output: Sequence[float], left: Sequence[float], right: Sequence[float]) -> bool:
    """Return whether a dot of these shapes can have this output: batch dimensions, free ones of left, of right."""
    for contracted in range(min(len(left), len(right)) + 1):
        free = len(left) - contracted  # dimensions of left that remain, the batch included
        batch = len(left) + len(right) - len(output) - 2 * contracted
        if 0 <= batch <= free <= len(output):
            kept = Counter(output[:free]), Counter([*output[:batch], *output[free:]])
            both = Counter(left), Counter(right)
            if kept[0] <= both[0] and kept[1] <= both[1] and both[0] - kept[0] == both[1] - kept[1]:
                return True
    return False
