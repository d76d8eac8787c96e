"""Sizes of the dimensions in the order of configured layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES, Graph, Int64
from hlorank.featurize.columns import DIMS
from hlorank.featurize.distinct import column_blocks, distinct_rows
from hlorank.featurize.operands import operand_pairs

Codes = NDArray[np.unsignedinteger[Any]]

_TENSORS = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)


def sized_layouts(
    graph: Graph, node_ids: Int64, codebook: NDArray[np.int8], codes: Codes
) -> tuple[NDArray[np.int8], NDArray[np.float32], Codes, Int64]:
    """Join to each row of layouts the sizes of the dimensions, in the order of the layouts.

    A row of layouts has other sizes at a node of other shapes, so the rows of the new codebook are the distinct pairs
    of layouts and sizes. At each node, old and new codes are in bijection and in the same order. The order of operands
    is inferred by a heuristic: `operand_pairs`.

    Args:
        graph: the whole graph.
        node_ids: (configurable nodes,) int64.
        codebook: (U, 18) int8, distinct rows of layouts.
        codes: (configurations, configurable nodes), unsigned, rows of the codebook.

    Returns:
        The codebook, (V, 18) int8, in the order of the old one; its sizes, (V, 18) float32, 0 where a layout has no
        value or the tensor is unknown; the codes, of the smallest unsigned type that fits; and the nodes of output,
        input and kernel, (configurable nodes, 3) int64, -1 for none.
    """
    used = [np.flatnonzero(np.bincount(column)) for _, block in column_blocks(codes) for column in block]
    tensors = _tensors(graph, node_ids, np.array([codebook[rows].max(axis=0) for rows in used]))
    shapes = np.where(tensors[..., None] >= 0, graph.node_feat[:, DIMS][tensors], np.float32(0))
    shapes = shapes.reshape(-1, LAYOUT_VALUES)
    first, shape_of = distinct_rows(shapes)

    # Nodes of equal shapes share rows, and so do nodes where the layouts order equal sizes.
    lengths = [len(rows) for rows in used]
    keys = np.concatenate(used) * len(first) + np.repeat(shape_of, lengths)
    keys, pair_of = np.unique(keys, return_inverse=True)
    row, shape = np.divmod(keys, len(first))
    sizes = _ordered(shapes[first[shape]], codebook[row])
    _, size_of = distinct_rows(sizes)
    keys, pair, code_of = np.unique(row * len(keys) + size_of, return_index=True, return_inverse=True)

    new = np.empty(codes.shape, dtype=np.min_scalar_type(len(keys) - 1))
    numbers = np.split(code_of[pair_of], np.cumsum(lengths)[:-1])
    table = np.empty(len(codebook), dtype=new.dtype)
    for part, block in column_blocks(codes):
        columns = np.empty(block.shape, dtype=new.dtype)
        for node, (old, column) in enumerate(zip(block, columns, strict=True), part.start):
            table[used[node]] = numbers[node]
            column[:] = table[old]
        new[:, part] = columns.T
    return codebook[row[pair]], sizes[pair], new, tensors


def _tensors(graph: Graph, node_ids: Int64, highest: NDArray[np.int8]) -> Int64:
    """Return output and operands, (configurable nodes, 3), given the `highest` values of layouts."""
    needed = highest.reshape(_TENSORS).max(axis=2).astype(np.int64) + 1
    return np.column_stack([node_ids, operand_pairs(graph, node_ids, needed[:, 1:])])


def _ordered(shapes: NDArray[np.float32], layouts: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return sizes of the dimensions that layouts (rows, 18) name, of shapes (rows, 18), else 0: (rows, 18)."""
    named = layouts.reshape(_TENSORS).astype(np.int64)
    sizes = np.take_along_axis(shapes.reshape(_TENSORS), np.maximum(named, 0), axis=2)
    return np.where(named >= 0, sizes, np.float32(0)).reshape(-1, LAYOUT_VALUES)
