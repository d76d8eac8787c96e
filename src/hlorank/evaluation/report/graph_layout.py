"""Where the nodes of a graph are drawn: in rows by topological depth, folded into columns like text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_SWEEPS = 6  # down and up in turn; more change little
_GAP = 2  # cells between blocks
_ASPECT = 1.5  # width / height of the drawing that is aimed at


class Block(NamedTuple):
    """Rows that are drawn in one piece.

    Attributes:
        nodes: (some nodes,) int64.
        x: (some nodes,) int64, the cell in the row.
        y: (some nodes,) int64, the row, from 0.
    """

    nodes: Int64
    x: Int64
    y: Int64


def depths(nodes: int, edges: Int64) -> Int64:
    """The row of each node: below all that it consumes, and as near as can be to what consumes it.

    Only nodes that nothing consumes stand as high as they can. So constants stand beside their use, where the longest
    path from an input would put hundreds of them into the first row.

    Args:
        nodes: their number.
        edges: (edges, 2) int64; [u, v] says that u consumes the output of v; u > v.

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
    """Cells 0..width-1 near the wanted ones, in their order, each taken once."""
    order = np.argsort(wanted, kind="stable")
    steps = np.arange(len(wanted))
    # Without the steps, different cells are equal ones at least; what is left is to keep them from decreasing.
    cells = np.maximum.accumulate(np.rint(wanted[order]).astype(np.int64) - steps) + steps
    cells = np.minimum(cells, width - len(wanted) + steps)
    placed = np.empty_like(cells)
    placed[order] = np.maximum(cells, steps)
    return placed


def _component(nodes: Int64, edges: Int64) -> Block:
    """Rows of one connected component; a row that would be too wide takes several.

    Args:
        nodes: (some nodes,) int64, increasing.
        edges: (edges, 2) int64, of these nodes.
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
        # Towards the middle of what is consumed on the way down, and of what consumes on the way up.
        own, other = (0, 1) if sweep % 2 == 0 else (1, 0)
        starts = np.argsort(local[:, own], kind="stable")
        neighbours = np.split(local[starts, other], np.cumsum(np.bincount(local[:, own], minlength=count))[:-1])
        for row in members if sweep % 2 == 0 else reversed(members):
            wanted = np.array([x[neighbours[node]].mean() if len(neighbours[node]) else x[node] for node in row])
            x[row] = _place(wanted, width)
    return Block(nodes, x.astype(np.int64), rows)


def _folded(block: Block, height: int) -> list[Block]:
    """A block cut into blocks of at most so many rows, each moved to the left edge."""
    pieces = []
    for piece in range(int(block.y.max()) // height + 1):
        chosen = block.y // height == piece
        x = block.x[chosen]
        pieces.append(Block(block.nodes[chosen], x - x.min(), block.y[chosen] - piece * height))
    return pieces


def layout(nodes: int, edges: Int64) -> tuple[Int64, Int64, Int64]:
    """Places the nodes of a graph in cells, no two in the same one.

    Each connected component is drawn in rows, every node below what it consumes. Long ones are folded into columns,
    which are read from top to bottom and from left to right; so are small components, side by side.

    Args:
        nodes: their number, at least 1.
        edges: (edges, 2) int64; [u, v] says that u consumes the output of v; u > v.

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
