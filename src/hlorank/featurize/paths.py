"""Distances to given nodes of a graph, and paths that connect them, over edges of either direction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import Graph, Int64


def distances(edge_index: Int64, nodes: int, sources: Int64) -> Int64:
    """Count the edges between each node and the nearest source.

    Args:
        edge_index: (edges, 2) int64, used in either direction.
        nodes: number of nodes.
        sources: (sources,) int64.

    Returns:
        (nodes,) int64, -1 for a node without a path to a source.
    """
    from scipy import sparse
    from scipy.sparse.csgraph import dijkstra

    adjacency = sparse.csr_array((np.ones(len(edge_index)), tuple(edge_index.T)), shape=(nodes, nodes))
    distance = dijkstra(adjacency, directed=False, indices=sources, unweighted=True, min_only=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)


def connecting_paths(graph: Graph, sources: Int64, distance: Int64) -> NDArray[np.bool_]:
    """Find the nodes of a small tree that connects the sources, for each connected component.

    Each node belongs to the region of its nearest source. The distance of two regions is the length of the shortest
    path through an edge between them. A minimum spanning tree over the regions is as short as one over all pairs of
    sources, so that it has at most twice the edges of the smallest possible tree (Mehlhorn, "A Faster Approximation
    Algorithm for the Steiner Problem in Graphs", Information Processing Letters 27, 1988), for the cost of one search.
    Ties are resolved by the smaller number of nodes and edges; so the result on the tree itself is the tree.

    Args:
        graph: the graph.
        sources: (sources,) int64.
        distance: (nodes,) int64, `distances` of these sources.

    Returns:
        (nodes,) bool, true for the nodes of the trees, which include the sources.
    """
    from scipy import sparse
    from scipy.sparse.csgraph import minimum_spanning_tree

    n, edges = graph.nodes, graph.edge_index
    parent = _parents(graph, distance)
    region = parent
    while not np.array_equal(further := region[region], region):
        region = further
    region = np.where(distance >= 0, region, -1)

    between = np.flatnonzero(region[edges[:, 0]] != region[edges[:, 1]])
    between = between[np.argsort(distance[edges[between]].sum(axis=1), kind="stable")]
    pairs = np.sort(region[edges[between]], axis=1)
    _, rank = np.unique(pairs[:, 0] * n + pairs[:, 1], return_index=True)  # shortest connection of each pair
    # Ranks instead of lengths: all differ, so that the minimum spanning tree is unique.
    tree = minimum_spanning_tree(sparse.csr_array((rank + 1.0, tuple(pairs[rank].T)), shape=(n, n)))
    ends = edges[between[tree.data.astype(np.int64) - 1]].ravel()

    on_path = np.zeros(n, dtype=np.bool_)
    on_path[sources] = True
    while len(ends := ends[~on_path[ends]]):
        on_path[ends] = True
        ends = parent[ends]
    return on_path


def _parents(graph: Graph, distance: Int64) -> Int64:
    """Return the smallest neighbour that is nearer to a source, else the node itself: (nodes,) int64."""
    ends = np.concatenate([graph.edge_index, graph.edge_index[:, ::-1]])
    node, nearer = ends[distance[ends[:, 0]] == distance[ends[:, 1]] + 1].T
    parent = np.arange(graph.nodes)
    parent[node] = graph.nodes
    np.minimum.at(parent, node, nearer)
    return parent
