"""Numeric columns of nodes before scaling: the official ones, and optional extra ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeConfig
from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import NODE_FEATURES, Graph
from hlorank.files import DataError
from hlorank.hlo.extra import EXTRA_SHAPES, Extra
from hlorank.hlo.node_features import ELEMENT_TYPE

NUMERIC_COLUMNS = NODE_FEATURES - LAYOUT_DIMS  # the last six are minor_to_major, which are in node_layout
DIMS = slice(21, 21 + LAYOUT_DIMS)
"""Columns of a node's dimensions."""
DIMS_PRODUCT = 28  # product of all dimensions, also of those beyond the sixth
# By column: invalid, pred, s8 to s64, u8 to u64, f16 to f64, bf16, c64, c128, tuple, opaque, token.
_ELEMENT_BYTES = np.array([0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0])
_BLOCK_ENTRIES = 2**22  # of a dense block of walk probabilities: 32 MiB
_FILLED = 0.1  # share of nonzero entries above which a block becomes dense


def node_columns(graph: Graph, options: FeaturizeConfig, extra: Extra | None) -> NDArray[np.float32]:
    """Compute the columns of all nodes, from which a `ColumnTransform` selects.

    Args:
        graph: the whole graph, as random walks may leave the part that a reduction keeps.
        options: settings that choose the columns.
        extra: extra features, as `hlorank.hlo.extra.read_extra` returns them; used only with `options.protobuf`.

    Returns:
        (nodes, 134 + extra) float32: the node features without minor_to_major, then the columns that
        `feature_spec.extra_columns` names.

    Raises:
        DataError: `options.protobuf` is true and `extra` is None.
    """
    parts = [graph.node_feat[:, :NUMERIC_COLUMNS]]
    if options.dims_128:
        quotient, remainder = np.divmod(graph.node_feat[:, DIMS], np.float32(128))
        parts += [remainder, quotient]
    if options.walk_steps:
        parts.append(return_probabilities(graph, options.walk_steps).astype(np.float32))
    if options.protobuf:
        if extra is None:
            raise DataError("extra", "the extra features of the protobuf, or featurize.protobuf=false", "none")
        parts += [extra[key].reshape(graph.nodes, -1).astype(np.float32) for key in EXTRA_SHAPES]
    if options.virtual_nodes:
        parts.append(np.ones((graph.nodes, 1), dtype=np.float32))  # its sum counts the merged nodes
    return parts[0] if len(parts) == 1 else np.hstack(parts)


def node_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Infer a lower bound of the number of dimensions of each node.

    A trailing dimension of size 0 cannot be distinguished from padding, except that the product is then 0; a captured
    layout also counts it.

    Args:
        node_feat: (nodes, 140) float32, raw features.

    Returns:
        (nodes,) int64.
    """
    dims, layout = node_feat[:, DIMS], node_feat[:, -LAYOUT_DIMS:]
    rank = np.where(dims > 0, np.arange(1, LAYOUT_DIMS + 1), 0).max(axis=1)
    shortest = np.maximum((dims > 0).sum(axis=1), (layout != 0).sum(axis=1)) + 1
    return np.asarray(np.where(node_feat[:, DIMS_PRODUCT] == 0, np.maximum(rank, shortest), rank))


def node_layout(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the layout of each node's output, minor_to_major padded with -1.

    The raw columns are padded with 0, which is also a dimension; so the rank is taken from the node's dimensions. A
    layout that is no permutation of 0..rank-1 was never captured and becomes all -1. The layout of a vector, [0],
    cannot be distinguished from padding: it counts as captured if any layout of the graph is.

    Args:
        node_feat: (nodes, 140) float32, the raw features of a whole graph.

    Returns:
        (nodes, 6) int8.
    """
    raw, positions = node_feat[:, -LAYOUT_DIMS:], np.arange(LAYOUT_DIMS)
    inside = positions < node_ranks(node_feat)[:, None]
    permutation = (np.sort(np.where(inside, raw, positions), axis=1) == positions).all(axis=1)
    captured = permutation & (raw != 0).any()
    return np.where(inside & captured[:, None], raw, -1).astype(np.int8)


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the size of an element of each node's result, (nodes,) int64; 0 for tuples, tokens and unknown types."""
    one_hot = node_feat[:, ELEMENT_TYPE.start : ELEMENT_TYPE.stop]
    return np.asarray(np.where(one_hot.any(axis=1), _ELEMENT_BYTES[one_hot.argmax(axis=1)], 0))


def return_probabilities(graph: Graph, steps: int) -> NDArray[np.float64]:
    """Compute random-walk positional encodings: the probability that a walk returns to its start after k steps.

    The encodings are the diagonals of (D^-1 A)^k for k = 1 to `steps`, edges taken in either direction (Dwivedi et al.,
    "Graph Neural Networks with Learnable Structural and Positional Representations", ICLR 2022, equation 8). They equal
    the diagonals of S^k with S = D^-1/2 A D^-1/2. As S is symmetric, entry v of the diagonal of S^(i+j) is the product
    of rows v of S^i and S^j: half the powers suffice, and blocks of rows bound the memory. The result is exact, and
    cheap if few nodes are within steps / 2 edges of a node.

    Args:
        graph: the graph; a node without edges gets zeros.
        steps: number of steps, at least 1; the first column is 0, as no edge leads from a node to itself.

    Returns:
        (nodes, steps) float64 in 0..1.
    """
    from scipy import sparse

    consumer, producer = graph.edge_index.T
    ends = np.concatenate([consumer, producer]), np.concatenate([producer, consumer])
    adjacency = sparse.csr_array((np.ones(len(ends[0])), ends), shape=(graph.nodes, graph.nodes))
    adjacency.data[:] = 1  # a repeated edge counts once
    norm = sparse.diags_array(1 / np.sqrt(np.maximum(adjacency.sum(axis=1), 1)))
    step = sparse.csr_array(norm @ adjacency @ norm)
    back = np.zeros((graph.nodes, steps))
    rows = max(1, _BLOCK_ENTRIES // graph.nodes)
    identity = sparse.csr_array(sparse.eye_array(graph.nodes))
    walks: Any  # rows of two powers of S, sparse until they fill
    further: Any
    for start in range(0, graph.nodes, rows):
        block = slice(start, start + rows)
        walks = identity[block]
        for k in range(steps):
            if k % 2 == 0:
                further = walks @ step
                if isinstance(further, sparse.csr_array) and further.nnz > _FILLED * math.prod(further.shape):
                    further = further.toarray()  # near a hub; dense rows are then several times faster
            else:
                walks = further
            back[block, k] = (walks * further).sum(axis=1)
    return back
