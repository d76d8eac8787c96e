"""Which nodes are the operands of the configurable ones, in their order, which the edges do not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS, Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, node_ranks
from hlorank.hlo.features import (
    BATCH_GROUPS,
    CONVOLUTION_INPUT,
    CONVOLUTION_KERNEL,
    CONVOLUTION_KERNEL_SPATIAL,
    CONVOLUTION_OUTPUT,
    FEATURE_GROUPS,
    WINDOW,
    Columns,
)
from hlorank.hlo.opcodes import OPCODES


def operand_pairs(graph: Graph, node_ids: Int64, dims: Int64) -> Int64:
    """The first two operands of configurable nodes, by a rule of thumb.

    Edges are a set sorted by node, so that a node with two operands does not say which is the first. Nodes are
    numbered in post-order of the operands, so the first has the smaller number, unless something before used the
    second one already: in a training step, the forward pass has read the weights. So the smaller number comes first,
    unless it does not fit as the first operand and does as the second: a layout names a dimension that it lacks, or
    the shape of the result cannot come out. Of a node with one operand it is both: a product of something with
    itself, or a reshape, whose second operand no layout speaks of.

    Where both orders fit, the wrong one may be chosen: nothing tells dot(x, y) from dot(y, x) where both are square.

    Args:
        graph: the whole graph.
        node_ids: (configurable nodes,) int64.
        dims: (configurable nodes, 2) int64, how many dimensions the first and the second operand have at least.

    Returns:
        (configurable nodes, 2) int64, -1 for a node without operands; of more than two, the two of smallest number.
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
    """(nodes,) whether each node can have these operands in this order."""
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
    """(convolutions,) whether their features (convolutions, 140) agree with these shapes (convolutions, 6)."""

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
    # Modules of before there were groups have 0 of them, which means one.
    batch_groups, feature_groups = (np.maximum(values(groups)[:, 0], 1) for groups in (BATCH_GROUPS, FEATURE_GROUPS))
    fits: NDArray[np.bool_] = (
        (batch == output_batch * batch_groups)
        & (feature == kernel_input * feature_groups)
        & (kernel_output == output_feature)
        & ((spatial == window) | (window == 0)).all(axis=1)
    )
    return fits


def _dot_fits(output: Sequence[float], left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether a product of these shapes can give this one: batch dimensions, then the free ones of left and right."""
    for contracted in range(min(len(left), len(right)) + 1):
        free = len(left) - contracted  # of left, with the batch
        batch = len(left) + len(right) - len(output) - 2 * contracted
        if 0 <= batch <= free <= len(output):
            kept = Counter(output[:free]), Counter([*output[:batch], *output[free:]])
            both = Counter(left), Counter(right)
            if kept[0] <= both[0] and kept[1] <= both[1] and both[0] - kept[0] == both[1] - kept[1]:
                return True
    return False
