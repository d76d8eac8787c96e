"""Reduction of a graph to its configurable nodes, what surrounds and connects them, and virtual nodes for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeOptions
from hlorank.data.graph import Float32, Int64, LayoutConfigurations, MeasuredGraph
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE
from hlorank.featurize.paths import connecting_paths, distances


@dataclass(frozen=True, eq=False)
class Reduction:
    """A graph with fewer nodes, in topological order like the one it was made from.

    A reduced node is a node of the whole graph, or a virtual node, into which several were merged.

    Attributes:
        node_of: (nodes,) int64, the reduced node of each node, -1 where it vanished.
        first: (reduced nodes,) int64, increasing, the node that each stands for, or the first of several.
        merged: (reduced nodes,) int64, how many nodes each stands for.
        opcode: (reduced nodes,) uint8, `VIRTUAL_OPCODE` of virtual nodes.
        edge_index: (reduced edges, 2) int64; row [u, v] says that u consumes the output of v, so u > v.
        node_splits: (computations + 1,) int64, without computations that vanished.
    """

    node_of: Int64
    first: Int64
    merged: Int64
    opcode: NDArray[np.uint8]
    edge_index: Int64
    node_splits: Int64

    @property
    def virtual(self) -> NDArray[np.bool_]:
        """(reduced nodes,) whether each is a virtual node."""
        return self.merged > 1

    def sums(self, columns: Float32) -> Float32:
        """Columns of the reduced nodes, (reduced nodes, columns), from those of the whole graph, (nodes, columns).

        A virtual node has the sums of the nodes merged. That they are sums of whatever a column holds, also of
        remainders, probabilities and paddings, loses nothing that a mean would keep, as `merged` is beside them.
        """
        if not self.virtual.any():
            return columns[self.first]
        # Where nodes were merged none vanished, so a virtual node extends to the next first one.
        return np.add.reduceat(columns, self.first, axis=0, dtype=np.float64).astype(np.float32)


def reduction(measured: MeasuredGraph, options: FeaturizeOptions) -> Reduction:
    """Reduces a graph to what the options keep of it; a tile graph, without configurable nodes, keeps all.

    What is not kept vanishes, or with `virtual_nodes` becomes virtual nodes: nodes that follow one another in the
    same computation are merged. Between the first and the last of them, the topological order has no other node that
    a path could lead through, so no cycle can arise, and the order remains. A single such node stays what it is.

    Edges of a merged node become the virtual node's: each once, and none to itself.
    """
    graph = measured.graph
    keep = _kept(measured, options)
    alive = keep | options.virtual_nodes
    starts = alive.copy()
    starts[1:] &= keep[1:] | keep[:-1]
    starts[graph.node_splits[:-1]] = alive[graph.node_splits[:-1]]
    before = np.concatenate([[0], np.cumsum(starts)])  # reduced nodes before each node, and each boundary
    node_of = np.where(alive, before[1:] - 1, -1)
    first, merged = np.flatnonzero(starts), np.bincount(node_of[alive])
    virtual = merged > 1
    edges = node_of[graph.edge_index[alive[graph.edge_index].all(axis=1)]]
    if virtual.any():
        edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return Reduction(
        node_of=node_of,
        first=first,
        merged=merged,
        opcode=np.where(virtual, np.uint8(VIRTUAL_OPCODE), graph.node_opcode[first]),
        edge_index=edges,
        node_splits=np.unique(before[graph.node_splits]),
    )


def _kept(measured: MeasuredGraph, options: FeaturizeOptions) -> NDArray[np.bool_]:
    """(nodes,) whether each node stays as it is."""
    graph, configurations = measured.graph, measured.configurations
    if not (options.reduces and isinstance(configurations, LayoutConfigurations)):
        return np.ones(graph.nodes, dtype=np.bool_)
    distance = distances(graph.edge_index, graph.nodes, configurations.node_ids)
    keep = (distance >= 0) & (distance <= (options.prune_hops or 0))
    if options.prune_paths:
        keep |= connecting_paths(graph, configurations.node_ids, distance)
    return np.asarray(keep)
