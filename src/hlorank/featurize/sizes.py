"""Sizes of the dimensions in the order of configured layouts, and what copies to these layouts move."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES
from hlorank.data.graph import Graph, Int64
from hlorank.featurize.columns import DIMS
from hlorank.featurize.distinct import column_blocks, distinct_rows
from hlorank.featurize.moves import byte_shares, copy_moves, own_layouts
from hlorank.featurize.operands import operand_pairs

Codes = NDArray[np.unsignedinteger[Any]]

_TENSORS = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)


def configured_tensors(graph: Graph, node_ids: Int64, codebook: NDArray[np.int8], codes: Codes) -> Int64:
    """Return the tensors whose layouts are configured, with the arguments of `sized_layouts`.

    Returns:
        (configurable nodes, 3) int64, the nodes of output, input and kernel, -1 for none. The order of operands is
        inferred by a heuristic: `operand_pairs`.
    """
    named = np.array([codebook[rows].max(axis=0) for rows in _used(codes)]).reshape(_TENSORS).max(axis=2)
    return np.column_stack([node_ids, operand_pairs(graph, node_ids, named[:, 1:].astype(np.int64) + 1)])


def sized_layouts(
    graph: Graph, tensors: Int64, codebook: NDArray[np.int8], codes: Codes, *, moves: bool
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], Codes]:
    """Join to each row of layouts the sizes of the dimensions, in the order of the layouts, and `copy_moves`.

    A row of layouts has other sizes at a node of other shapes, and moves something else where the tensors have other
    layouts, so the rows of the new codebook are the distinct triples of layouts, sizes and moves. At each node, old and
    new codes are in bijection and in the same order.

    Args:
        graph: the whole graph.
        tensors: (configurable nodes, 3) int64, as `configured_tensors` returns them.
        codebook: (U, 18) int8, distinct rows of layouts.
        codes: (configurations, configurable nodes), unsigned, rows of the codebook.
        moves: with `copy_moves`; without, they are 0.

    Returns:
        The codebook, (V, 18) int8, in the order of the old one; its sizes, (V, 18) float32, 0 where a layout has no
        value or the tensor is unknown; its moves, (V, 3) float32; and the codes, of the smallest unsigned type that
        fits.
    """
    used = _used(codes)
    shapes = np.where(tensors[..., None] >= 0, graph.node_feat[:, DIMS][tensors], np.float32(0))
    shapes = shapes.reshape(-1, LAYOUT_VALUES)
    moved = tensors if moves else np.full_like(tensors, -1)
    own, shares = own_layouts(graph, moved), byte_shares(graph, moved)
    first, kind_of = distinct_rows(np.hstack([shapes, own, shares], dtype=np.float32))

    # Nodes of equal tensors share rows, and so do nodes where the layouts order equal sizes and move as much.
    lengths = [len(rows) for rows in used]
    keys = np.concatenate(used) * len(first) + np.repeat(kind_of, lengths)
    keys, pair_of = np.unique(keys, return_inverse=True)
    row, kind = np.divmod(keys, len(first))
    at = first[kind]
    sizes = _ordered(shapes[at], codebook[row])
    bytes_moved = copy_moves(own[at], shares[at], codebook[row], shapes[at])
    _, read_of = distinct_rows(np.hstack([sizes, bytes_moved]))
    keys, pair, code_of = np.unique(row * len(keys) + read_of, return_index=True, return_inverse=True)

    new = np.empty(codes.shape, dtype=np.min_scalar_type(len(keys) - 1))
    numbers = np.split(code_of[pair_of], np.cumsum(lengths)[:-1])
    table = np.empty(len(codebook), dtype=new.dtype)
    for part, block in column_blocks(codes):
        columns = np.empty(block.shape, dtype=new.dtype)
        for node, (old, column) in enumerate(zip(block, columns, strict=True), part.start):
            table[used[node]] = numbers[node]
            column[:] = table[old]
        new[:, part] = columns.T
    return codebook[row[pair]], sizes[pair], bytes_moved[pair], new


def _used(codes: Codes) -> list[Int64]:
    """Return the codes of each configurable node, increasing."""
    return [np.flatnonzero(np.bincount(column)) for _, block in column_blocks(codes) for column in block]


def _ordered(shapes: NDArray[np.float32], layouts: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return sizes of the dimensions that layouts (rows, 18) name, of shapes (rows, 18), else 0: (rows, 18)."""
    named = layouts.reshape(_TENSORS).astype(np.int64)
    sizes = np.take_along_axis(shapes.reshape(_TENSORS), np.maximum(named, 0), axis=2)
    return np.where(named >= 0, sizes, np.float32(0)).reshape(-1, LAYOUT_VALUES)
