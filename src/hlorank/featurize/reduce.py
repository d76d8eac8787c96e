"""Reduction of a graph to its configurable nodes, the nodes around and between them, and virtual nodes for others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeConfig
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Float32, Int64
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE
from hlorank.featurize.paths import connecting_paths, distances


@dataclass(frozen=True, eq=False)
class Reduction:
    """A graph with fewer nodes, in topological order like the original graph.

    A reduced node is a node of the whole graph, or a virtual node, into which several were merged.

    Attributes:
        node_of: (nodes,) int64, the reduced node of each node, -1 for a node that is left out.
        first: (reduced nodes,) int64, increasing, the first original node of each reduced node.
        merged: (reduced nodes,) int64, the number of original nodes of each reduced node.
        opcode: (reduced nodes,) uint8, `VIRTUAL_OPCODE` for virtual nodes.
        edge_index: (reduced edges, 2) int64; row [u, v]: u consumes the output of v, so u > v.
        node_splits: (computations + 1,) int64, without computations that are left out.
    """

    node_of: Int64
    first: Int64
    merged: Int64
    opcode: NDArray[np.uint8]
    edge_index: Int64
    node_splits: Int64

    @property
    def virtual(self) -> NDArray[np.bool_]:
        """True for virtual nodes: (reduced nodes,) bool."""
        return self.merged > 1

    def sums(self, columns: Float32) -> Float32:
        """Compute columns of the reduced nodes, (reduced nodes, columns), from those of the graph, (nodes, columns).

        A virtual node has the sum of each column over its merged nodes, also of remainders, probabilities and padding.
        No information of a mean is lost, as `merged` is a column too.
        """
        if not self.virtual.any():
            return columns[self.first]
        # If nodes were merged, none was left out: a virtual node extends to the first node of the next one.
        return np.add.reduceat(columns, self.first, axis=0, dtype=np.float64).astype(np.float32)


def reduction(measured: MeasuredGraph, options: FeaturizeConfig) -> Reduction:
    """Reduce a graph to the nodes that the options keep; a tile graph, without configurable nodes, keeps all.

    Other nodes are left out, or with `virtual_nodes` merged: consecutive ones in the same computation become one
    virtual node. No other node is between them in the topological order, so no path can lead out and back: no cycle
    can arise, and the order remains. A single such node is unchanged.

    A virtual node has each edge of its merged nodes once, except for edges between them. With `prune_edges` both have
    only the edges that touch a configurable node.
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
    kept_edges = alive[graph.edge_index].all(axis=1)
    if options.prune_edges and isinstance(measured.configurations, LayoutConfigurations):
        kept_edges &= np.isin(graph.edge_index, measured.configurations.node_ids).any(axis=1)
    edges = node_of[graph.edge_index[kept_edges]]
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


def _kept(measured: MeasuredGraph, options: FeaturizeConfig) -> NDArray[np.bool_]:
    """Return whether each node is kept unchanged: (nodes,) bool."""
    graph, configurations = measured.graph, measured.configurations
    if not (options.reduces and isinstance(configurations, LayoutConfigurations)):
        return np.ones(graph.nodes, dtype=np.bool_)
    distance = distances(graph.edge_index, graph.nodes, configurations.node_ids)
    keep = (distance >= 0) & (distance <= (options.prune_hops or 0))
    if options.prune_paths:
        keep |= connecting_paths(graph, configurations.node_ids, distance)
    return np.asarray(keep)
