"""A segment of a graph, and some of its configurations, as integers and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.models.compression.edges import Edges


@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of one segment and its halo, and the edges between them.

    Nodes are ordered by their distance, in edges of either direction, from the nearest configurable node. So the
    nodes that a configuration can change after k layers of message passing are the first ones, the k-hop prefix, and
    the configurable nodes come before all others. In a tile kernel every node is configurable.

    Attributes:
        node_ids: (nodes,) int64, numbers of these nodes in the graph.
        initial_colour: (nodes,) int64, equal for nodes with equal features.
        colour_numeric: (initial colours, node columns) float32, the features of the nodes of each initial colour.
        colour_opcode: (initial colours,) int64.
        colour_layout: (initial colours, 6) int64, minor_to_major, -1 padded.
        edges: between the nodes.
        hop_prefixes: `hop_prefixes[k]` nodes are at most k edges away from a configurable node; the last entry is
            for all larger k.
        config_columns: (configurable nodes,) int64, their columns in the graph's configuration codes; none for tiles.
        pooled: (nodes,) bool, the segment's own nodes, which are pooled; None without a halo.
    """

    node_ids: NDArray[np.int64]
    initial_colour: NDArray[np.int64]
    colour_numeric: NDArray[np.floating]
    colour_opcode: NDArray[np.int64]
    colour_layout: NDArray[np.int64]
    edges: Edges
    hop_prefixes: Sequence[int]
    config_columns: NDArray[np.int64]
    pooled: NDArray[np.bool_] | None

    @property
    def nodes(self) -> int:
        """The number of nodes, halo included."""
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
    """Some layout configurations of a segment.

    Attributes:
        codebook: (U, 18) int64, layout values -1..5; the rows that these configurations use.
        sizes: (U, 18) float32, the sizes of these dimensions; see `LayoutFeatures`.
        codes: (configurations, k) int64, one row of the codebook for each configurable node of the segment.
    """

    codebook: NDArray[np.int64]
    sizes: NDArray[np.floating]
    codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Some tile configurations of a kernel.

    Attributes:
        feat: (configurations, tile columns) float32.
    """

    feat: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.feat)


ConfigurationBatch = LayoutBatch | TileBatch
