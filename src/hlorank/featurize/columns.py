"""Numeric columns of nodes before scaling; shapes and layouts in them, and the dimensions that a layout orders."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import NODE_FEATURES
from hlorank.hlo.node_features import ELEMENT_TYPE

NUMERIC_COLUMNS = NODE_FEATURES - LAYOUT_DIMS  # the last six are minor_to_major, which are in node_layout
DIMS = slice(21, 21 + LAYOUT_DIMS)
"""Columns of a node's dimensions."""
DIMS_PRODUCT = 28  # product of all dimensions, the seventh and later ones included
# By column: invalid, pred, s8 to s64, u8 to u64, f16 to f64, bf16, c64, c128, tuple, opaque, token.
ELEMENT_BYTES = np.array([0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0])


def node_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Infer a lower bound of the number of dimensions of each node, (nodes,), from features (nodes, 140).

    A trailing dimension of size 0 cannot be distinguished from padding, except that the product is then 0; a captured
    layout also counts it.
    """
    dims, layout = node_feat[:, DIMS], node_feat[:, -LAYOUT_DIMS:]
    rank = np.where(dims > 0, np.arange(1, LAYOUT_DIMS + 1), 0).max(axis=1)
    shortest = np.maximum((dims > 0).sum(axis=1), (layout != 0).sum(axis=1)) + 1
    return np.asarray(np.where(node_feat[:, DIMS_PRODUCT] == 0, np.maximum(rank, shortest), rank))


def node_layout(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the layout of each node's output, (nodes, 6) minor_to_major padded with -1, of a whole graph.

    The raw columns are padded with 0, which is also a dimension; so the rank is taken from the node's dimensions. A
    layout that is no permutation of 0..rank-1 was never captured and becomes all -1. The layout of a vector, [0],
    cannot be distinguished from padding: it counts as captured if any layout of the graph is.
    """
    raw, positions = node_feat[:, -LAYOUT_DIMS:], np.arange(LAYOUT_DIMS)
    inside = positions < node_ranks(node_feat)[:, None]
    permutation = (np.sort(np.where(inside, raw, positions), axis=1) == positions).all(axis=1)
    captured = permutation & (raw != 0).any()
    return np.where(inside & captured[:, None], raw, -1).astype(np.int8)


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the size of an element of each node's result, (nodes,) int64; 0 for tuples, tokens and unknown types."""
    one_hot = node_feat[:, ELEMENT_TYPE.start : ELEMENT_TYPE.stop]
    return np.asarray(np.where(one_hot.any(axis=1), ELEMENT_BYTES[one_hot.argmax(axis=1)], 0))


def row_major(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row-major layout of each number of dimensions, (ranks, 6)."""
    return np.asarray(np.maximum(ranks[:, None] - 1 - np.arange(LAYOUT_DIMS), -1))


def without_ones(layouts: NDArray[np.int64], sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return layouts (..., 6), minor_to_major padded with -1, without dimensions of size 1, which order nothing.

    `sizes` are (..., 6), 0 for no dimension.
    """
    dims = np.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, 1)])
    named = np.take_along_axis(np.broadcast_to(dims, (*layouts.shape[:-1], LAYOUT_DIMS + 1)), layouts, axis=-1)
    order = np.argsort(named <= 1, axis=-1, kind="stable")
    return np.take_along_axis(np.where(named <= 1, -1, layouts), order, axis=-1)
