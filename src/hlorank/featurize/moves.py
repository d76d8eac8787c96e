"""Copies of tensors from their own layouts in a graph to configured ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES
from hlorank.data.graph import Graph, Int64
from hlorank.featurize.columns import DIMS, DIMS_PRODUCT, element_bytes, node_layout

MOVES = 3
"""Columns of `copy_moves`."""

_TENSORS = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)


def own_layouts(graph: Graph, tensors: Int64) -> NDArray[np.int8]:
    """Return the layouts of tensors in the graph, row-major where none was captured.

    Args:
        graph: the whole graph.
        tensors: (configurable nodes, 3) int64, the nodes of output, input and kernel, -1 for none.

    Returns:
        (configurable nodes, 18) int8, minor_to_major of each tensor, padded with -1.
    """
    rank = (graph.node_feat[:, DIMS] > 0).sum(axis=1, keepdims=True)
    row_major = np.maximum(rank - 1 - np.arange(LAYOUT_DIMS), -1)
    captured = node_layout(graph.node_feat)
    layouts = np.where((captured >= 0).any(axis=1, keepdims=True), captured, row_major)
    own = np.where(tensors[..., None] >= 0, layouts[tensors], -1)
    return own.astype(np.int8).reshape(-1, LAYOUT_VALUES)


def byte_shares(graph: Graph, tensors: Int64) -> NDArray[np.float32]:
    """Return the shares of tensors in the bytes of all results of the graph; arguments as of `own_layouts`.

    Returns:
        (configurable nodes, 3) float32, 0 for no tensor.
    """
    sizes = graph.node_feat[:, DIMS_PRODUCT].astype(np.float64) * element_bytes(graph.node_feat)
    return np.where(tensors >= 0, sizes[tensors] / max(sizes.sum(), 1), 0).astype(np.float32)


def copy_moves(
    own: NDArray[np.int8], shares: NDArray[np.float32], layouts: NDArray[np.int8], shapes: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return what it takes to copy output, input and kernel from their own layouts to others.

    A layout of fewer dimensions, as those of TPUs are, gives the order of the minor ones; one without dimensions moves
    nothing. Dimensions of size 1 do not count, as they change no order in memory.

    Args:
        own: (rows, 18), the tensors' own layouts.
        shares: (rows, 3), the tensors' shares in the bytes of the graph.
        layouts: (rows, 18), the others.
        shapes: (rows, 18), the dimensions, 0 for none.

    Returns:
        (rows, 3) float32, sums of the shares of tensors whose layout differs; of those whose minor dimension does; and
        of the first ones, each divided by sqrt(elements that stay contiguous).
    """
    before, after = (part.reshape(_TENSORS).astype(np.int64) for part in (own, layouts))
    known = (before >= 0).any(axis=2)
    dims = np.ones((*after.shape[:2], LAYOUT_DIMS + 1))  # the last one is of no dimension
    dims[..., :LAYOUT_DIMS] = np.maximum(shapes.reshape(_TENSORS), 1)
    before, after = without_ones(before, dims), without_ones(after, dims)
    same = np.logical_and.accumulate((before == after) | (after < 0), axis=2)
    moved = known & ~same[..., -1]
    kept = np.take_along_axis(dims, before % (LAYOUT_DIMS + 1), axis=2)
    run = np.where(same, kept, 1).prod(axis=2)
    columns = np.stack([moved, moved & ~same[..., 0], moved / np.sqrt(run)], axis=2)
    summed: NDArray[np.float64] = (shares[..., None] * columns).sum(axis=1)
    return summed.astype(np.float32)


def without_ones(layouts: Int64, dims: NDArray[Any]) -> Int64:
    """Return layouts (..., 6) without dimensions of size 1, padded with -1.

    Args:
        layouts: minor_to_major, padded with -1.
        dims: (..., 7), the dimensions, and 1 for no dimension.
    """
    dims = np.broadcast_to(dims, (*layouts.shape[:-1], LAYOUT_DIMS + 1))
    left = np.take_along_axis(dims, layouts % (LAYOUT_DIMS + 1), axis=-1) == 1
    order = np.argsort(left, axis=-1, kind="stable")
    return np.asarray(np.take_along_axis(np.where(left, -1, layouts), order, axis=-1))
