"""Pruning of a graph to the surroundings of its configurable nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlorank.graph import Graph, LayoutConfigurations, MeasuredGraph


def nodes_within(graph: Graph, sources: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """The nodes at most `hops` edges, in either direction, away from one of the sources.

    Returns:
        (kept,) int64, increasing; the sources are among them.
    """
    near = np.zeros(graph.nodes, dtype=np.bool_)
    near[sources] = True
    consumer, producer = graph.edge_index.T
    for _ in range(hops):
        reached = near.copy()
        reached[consumer[near[producer]]] = True
        reached[producer[near[consumer]]] = True
        near = reached
    return np.flatnonzero(near)


def induced_subgraph(graph: Graph, kept: NDArray[np.int64]) -> Graph:
    """The graph of some nodes and the edges among them.

    The order of nodes and edges stays; blocks of node_splits shrink, and empty ones vanish.

    Args:
        graph: the whole graph.
        kept: (kept,) int64, increasing, at least one.
    """
    keep = np.zeros(graph.nodes, dtype=np.bool_)
    keep[kept] = True
    before = np.concatenate([[0], np.cumsum(keep)])  # nodes kept before each node: its new id, and each new boundary
    edges = graph.edge_index[keep[graph.edge_index].all(axis=1)]
    return Graph(graph.node_feat[kept], graph.node_opcode[kept], before[edges], np.unique(before[graph.node_splits]))


def kept_nodes(measured: MeasuredGraph, hops: int | None) -> NDArray[np.int64]:
    """The nodes that stay when a graph is pruned to `hops` edges around its configurable nodes.

    Returns:
        (kept,) int64, increasing; all nodes if hops is None, and of a tile graph, which has no configurable nodes.
    """
    configurations = measured.configurations
    if hops is None or not isinstance(configurations, LayoutConfigurations):
        return np.arange(measured.graph.nodes)
    return nodes_within(measured.graph, configurations.node_ids, hops)
