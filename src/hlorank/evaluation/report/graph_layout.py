"""Positions of the nodes of a graph in a drawing: in rows by topological depth, folded into columns like text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_SWEEPS = 6  # alternately downward and upward; further sweeps change little
_GAP = 2  # cells between blocks
_ASPECT = 1.5  # intended width / height of a drawing


class Block(NamedTuple):
    """Rows that are drawn as one piece.

    Attributes:
        nodes: (some nodes,) int64.
        x: (some nodes,) int64, the cell in the row.
        y: (some nodes,) int64, the row, from 0.
    """

    nodes: Int64
    x: Int64
    y: Int64


def depths(nodes: int, edges: Int64) -> Int64:
    """Return the row of each node: below its operands, and as near as possible to its users.

    Only nodes without users are as high as possible. So constants are next to their users; the longest path from an
    input would put hundreds of them into the first row.

    Args:
        nodes: number of nodes.
        edges: (edges, 2) int64; [u, v]: u consumes the output of v; u > v.

    Returns:
        (nodes,) int64, from 0.
    """
    depth = np.zeros(nodes, dtype=np.int64)
    for u, v in edges[np.argsort(edges[:, 0], kind="stable")].tolist():
        depth[u] = max(depth[u], depth[v] + 1)
    late = np.where(np.bincount(edges[:, 1], minlength=nodes) > 0, np.iinfo(np.int64).max, depth)
    for u, v in edges[np.argsort(-edges[:, 1], kind="stable")].tolist():
        late[v] = min(late[v], late[u] - 1)
    return late


def _place(wanted: NDArray[np.float64], width: int) -> Int64:
    """Return different cells of 0..width-1 near the wanted ones, in the same order."""
    order = np.argsort(wanted, kind="stable")
    steps = np.arange(len(wanted))
    # Cells less their index must not decrease, so that cells are different.
    cells = np.maximum.accumulate(np.rint(wanted[order]).astype(np.int64) - steps) + steps
    cells = np.minimum(cells, width - len(wanted) + steps)
    placed = np.empty_like(cells)
    placed[order] = np.maximum(cells, steps)
    return placed


def _component(nodes: Int64, edges: Int64) -> Block:
    """Arrange one connected component in rows; a row that would be too wide is split into several.

    Args:
        nodes: (some nodes,) int64, increasing.
        edges: (edges, 2) int64, edges between these nodes.
    """
    count = len(nodes)
    local = np.searchsorted(nodes, edges)
    depth = depths(count, local)
    width = int(np.clip(np.ceil(np.sqrt(count) / 2), 8, 24))
    order = np.lexsort((np.arange(count), depth))
    first = np.searchsorted(depth[order], depth[order])  # of its row
    place = np.arange(count) - first
    rows = np.empty(count, dtype=np.int64)
    rows[order] = np.unique(np.stack([depth[order], place // width]), axis=1, return_inverse=True)[1].ravel()
    x = np.empty(count, dtype=np.float64)
    x[order] = place % width
    members = np.split(np.argsort(rows, kind="stable"), np.cumsum(np.bincount(rows))[:-1])
    for sweep in range(_SWEEPS):
        # Towards the mean position of the operands in downward sweeps, and of the users in upward sweeps.
        own, other = (0, 1) if sweep % 2 == 0 else (1, 0)
        starts = np.argsort(local[:, own], kind="stable")
        neighbours = np.split(local[starts, other], np.cumsum(np.bincount(local[:, own], minlength=count))[:-1])
        for row in members if sweep % 2 == 0 else reversed(members):
            wanted = np.array([x[neighbours[node]].mean() if len(neighbours[node]) else x[node] for node in row])
            x[row] = _place(wanted, width)
    return Block(nodes, x.astype(np.int64), rows)


def _folded(block: Block, height: int) -> list[Block]:
    """Cut a block into blocks of at most `height` rows, each moved to the left edge."""
    pieces = []
    for piece in range(int(block.y.max()) // height + 1):
        chosen = block.y // height == piece
        x = block.x[chosen]
        pieces.append(Block(block.nodes[chosen], x - x.min(), block.y[chosen] - piece * height))
    return pieces


def layout(nodes: int, edges: Int64) -> tuple[Int64, Int64, Int64]:
    """Assign a cell of its own to each node of a graph.

    Each connected component is drawn in rows, every node below its operands. Long components are folded into columns,
    which are read from top to bottom and from left to right; small components are next to each other.

    Args:
        nodes: number of nodes, at least 1.
        edges: (edges, 2) int64; [u, v]: u consumes the output of v; u > v.

    Returns:
        x, y and the block of each node, (nodes,) int64 each. Blocks are numbered in reading order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    component = connected_components(links, directed=False)[1]
    components = [
        _component(np.flatnonzero(component == one), edges[component[edges[:, 0]] == one])
        for one in range(int(component.max()) + 1)
    ]
    area = sum((block.x.max() + 1 + _GAP) * (block.y.max() + 1 + _GAP) for block in components)
    height = max(16, int(np.sqrt(area / _ASPECT)))
    blocks = [piece for block in components for piece in _folded(block, height)]
    limit = max(_ASPECT * height, max(block.x.max() + 1 for block in blocks))
    x, y, number = (np.empty(nodes, dtype=np.int64) for _ in range(3))
    left = top = shelf = 0
    for place, block in enumerate(blocks):
        width = int(block.x.max()) + 1
        if left and left + width > limit:
            left, top, shelf = 0, top + shelf + _GAP, 0
        x[block.nodes], y[block.nodes], number[block.nodes] = block.x + left, block.y + top, place
        left, shelf = left + width + _GAP, max(shelf, int(block.y.max()) + 1)
    return x, y, number
