"""Segments of a graph and their configurations, as integers and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.models.compression.declarations import EdgeKind, Norm


class Neighbourhood(NamedTuple):
    """Edges of a segment, grouped by the node that receives, and within its group by their type."""

    starts: NDArray[np.int64]  # (nodes + 1,) index of the first entry of each node, which is from the node itself
    source: NDArray[np.int64]  # (entries,) the node that sends
    edge_type: NDArray[np.int64]  # (entries,) 0 the node itself; then 1 an operand and 2 a user, or 1 either
    weight: NDArray[np.float64]  # (entries,) float64
    hashes: csr_array  # nodes x nodes, uint64, of each entry the random number of its pair of edge type and weight
    parts: dict[int, tuple[csr_array, csr_array]]  # of `rows`

    def rows(self, prefix: int) -> tuple[csr_array, csr_array]:
        """Return the first rows of `hashes`, without the last columns that have no entry in them, and all others."""
        if prefix not in self.parts:
            near = self.hashes[:prefix]
            self.parts[prefix] = near[:, : near.indices.max(initial=-1) + 1], self.hashes[prefix:]
        return self.parts[prefix]


class Edges:
    """Edges of a segment, (edges, 2) int64, a node and its operand; the first nodes are the `configurable` nodes."""

    def __init__(self, ends: NDArray[np.int64], nodes: int, configurable: int) -> None:
        self.ends = ends
        self.nodes = nodes
        self.configurable = configurable
        self._neighbourhoods: dict[EdgeKind, Neighbourhood] = {}

    def __len__(self) -> int:
        return len(self.ends)

    def only(self, kept: NDArray[np.bool_]) -> Edges:
        """Return the edges of a mask, (edges,); degrees count only these."""
        return Edges(self.ends[kept], self.nodes, self.configurable)

    def neighbourhood(self, kind: EdgeKind) -> Neighbourhood:
        """Return the edges of a kind with their weights, made once."""
        if kind not in self._neighbourhoods:
            self._neighbourhoods[kind] = self._weighted(kind)
        return self._neighbourhoods[kind]

    def _weighted(self, kind: EdgeKind) -> Neighbourhood:
        user, operand = self.ends.T
        nodes, received = np.arange(self.nodes), [(user, operand), (operand, user)]
        degrees = [np.bincount(end, minlength=self.nodes) for end in self.ends.T]  # numbers of operands, and of users
        if kind.directions == "users":
            received, degrees = received[1:], degrees[1:]
        every = np.sum(degrees, axis=0)
        target, source = (np.concatenate([nodes, *ends]) for ends in zip(*received, strict=True))
        types = [1, kind.neighbour_types][: len(received)]
        edge_type = np.repeat([0, *types], [self.nodes, *[len(user)] * len(received)])
        if kind.norm is Norm.MEAN:
            of_type = [np.ones(self.nodes), *(degrees if kind.neighbour_types > 1 else [every])]
            weight = 1 / np.maximum(1, np.stack(of_type)[edge_type, target])
        elif kind.norm is Norm.SYMMETRIC:
            weight = 1 / np.sqrt((1 + every[target]) * (1.0 + every[source]))
        else:
            weight = np.ones(len(target))
        order = np.lexsort((edge_type, target))
        if kind.to_configurable:
            order = order[(target[order] < self.configurable) | (edge_type[order] == 0)]
        target, source, edge_type, weight = target[order], source[order], edge_type[order], weight[order]
        starts = np.append(0, np.cumsum(np.bincount(target, minlength=self.nodes)))
        pair = np.unique(weight, return_inverse=True)[1] * 3 + edge_type
        hashes = np.random.default_rng(1).integers(2**64, size=pair.max(initial=0) + 1, dtype=np.uint64)[pair]
        hashed = csr_array((hashes, source, starts), shape=(self.nodes, self.nodes))
        return Neighbourhood(starts, source, edge_type, weight, hashed, {})


@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of a segment and the edges between them; or of stacked segments.

    Nodes are ordered by their distance, in edges of either direction, from the nearest configurable node. So the
    nodes that a configuration can change after k layers of message passing are the first ones, the k-hop prefix, and
    the configurable nodes come before all others. In a tile kernel every node is configurable.
    """

    node_ids: NDArray[np.int64]  # (nodes,) int64, numbers of these nodes in the graph
    part: NDArray[np.int64]  # (nodes,) int64, the segment of each node
    parts: int  # number of segments
    initial_colour: NDArray[np.int64]  # (nodes,) int64, equal for nodes with equal features
    # (initial colours, node columns) float32, the features of the nodes of each initial colour
    colour_numeric: NDArray[np.floating]
    colour_opcode: NDArray[np.int64]  # (initial colours,) int64
    colour_layout: NDArray[np.int64]  # (initial colours, 6) int64, minor_to_major, -1 padded
    edges: Edges  # between the nodes
    # `hop_prefixes[k]` nodes are at most k edges away from a configurable node; the last entry is for all larger k
    hop_prefixes: Sequence[int]
    # (configurable nodes,) int64, their columns in the graph's configuration codes; none for tiles
    config_columns: NDArray[np.int64]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.initial_colour)

    @property
    def configurable(self) -> int:
        """The number of configurable nodes."""
        return self.k_hop_prefix(0)

    def k_hop_prefix(self, k: int) -> int:
        """Return the number of nodes at most `k` edges away from a configurable node."""
        return self.hop_prefixes[min(k, len(self.hop_prefixes) - 1)]


@dataclass(frozen=True, eq=False)
class LayoutBatch:
    """Layout configurations of a segment, or as many of each of several stacked segments."""

    codebook: NDArray[np.int64]  # (U, 18) int64, layout values -1..5, of these configurations
    sizes: NDArray[np.floating]  # (U, 18) float32, the sizes of these dimensions; see `LayoutFeatures`
    costs: NDArray[np.floating]  # (U, 3) float32, what these layouts cost
    # (configurations, k) int64, one row of the codebook for each configurable node of the segment
    codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Tile configurations of a kernel, (configurations, tile columns) float32."""

    feat: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.feat)


ConfigurationBatch = LayoutBatch | TileBatch
