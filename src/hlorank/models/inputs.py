"""A graph's features as the inputs of a cost model, segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.paths import distances
from hlorank.models.edges import Edges
from hlorank.partition.segments import Partition


@dataclass(frozen=True)
class InputSizes:
    """Sizes of the inputs that a cost model is built for.

    Attributes:
        kind: layout or tile.
        node_columns: number of numeric columns of a node.
        opcodes: number of opcodes, unknown included.
        tile_columns: number of numeric columns of a tile configuration, 0 for layouts.
    """

    kind: Literal["layout", "tile"]
    node_columns: int
    opcodes: int
    tile_columns: int


@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of one segment and its halo, and the edges between them.

    Nodes are ordered by their distance, in edges of either direction, from the nearest configurable node. So the
    nodes that a configuration can change after k layers of message passing are the first ones, the k-hop prefix, and
    the configurable nodes come before all others. In a tile kernel every node is configurable.

    Attributes:
        node_ids: (nodes,) int64, numbers of these nodes in the graph.
        node_feat: (nodes, node columns) float32.
        opcode: (nodes,) int64.
        node_layout: (nodes, 6) int64, minor_to_major, -1 padded.
        initial_colour: (nodes,) int64, equal for nodes with equal features.
        colour_node: (initial colours,) int64, one node of each initial colour.
        edges: between the nodes.
        hop_prefixes: `hop_prefixes[k]` nodes are at most k edges away from a configurable node; the last entry is
            for all larger k.
        config_columns: (configurable nodes,) int64, their columns in the graph's configuration codes; none for tiles.
        pooled: (nodes,) bool, the segment's own nodes, which are pooled; None without a halo.
    """

    node_ids: NDArray[np.int64]
    node_feat: Tensor
    opcode: Tensor
    node_layout: Tensor
    initial_colour: NDArray[np.int64]
    colour_node: NDArray[np.int64]
    edges: Edges
    hop_prefixes: Sequence[int]
    config_columns: NDArray[np.int64]
    pooled: Tensor | None

    @property
    def nodes(self) -> int:
        """The number of nodes, halo included."""
        return len(self.opcode)

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

    codebook: Tensor
    sizes: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Some tile configurations of a kernel.

    Attributes:
        feat: (configurations, tile columns) float32.
    """

    feat: Tensor

    def __len__(self) -> int:
        return len(self.feat)


ConfigurationBatch = LayoutBatch | TileBatch


class GraphInputs:
    """One graph, cut into segments, with access to its configurations.

    Nodes are in memory as tensors; configurations stay in their memory map, from which a step reads its rows.
    """

    def __init__(self, features: GraphFeatures, partition: Partition, device: torch.device) -> None:
        self.features = features
        self.partition = partition
        self.device = device
        self.segments: Sequence[Segment] = _segments(features, partition, device)

    @cached_property
    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The configurations that training ranks, and their labels; see `GraphFeatures.targets`."""
        return self.features.targets()

    def distinct(self, rows: NDArray[np.int64], j: int) -> tuple[NDArray[np.int64], Tensor]:
        """Return one configuration for each distinct local configuration of a segment.

        Args:
            rows: (configurations,) int64, indices of distinct configurations.
            j: the segment.

        Returns:
            (d,) int64, some of the `rows`, and (configurations,) int64, the inverse: for each of `rows` the index of
            the one that equals it in the segment.
        """
        _, first, inverse = np.unique(self.partition.local_codes[rows, j], return_index=True, return_inverse=True)
        return rows[first], torch.from_numpy(inverse).to(self.device)

    def configurations(self, rows: NDArray[np.int64], segment: Segment) -> ConfigurationBatch:
        """Return some distinct configurations, restricted to the nodes of one segment.

        Args:
            rows: (configurations,) int64, indices of distinct configurations.
            segment: one of `segments`.
        """
        configurations = self.features.configurations
        if isinstance(configurations, TileFeatures):
            return TileBatch(torch.tensor(configurations.feat[rows], device=self.device))
        codes = configurations.codes[rows][:, segment.config_columns]
        # A codebook may be long; rows that are not used here need not be embedded.
        number, used = pd.factorize(codes.ravel(), sort=True)
        return LayoutBatch(
            torch.tensor(configurations.codebook[used], dtype=torch.int64, device=self.device),
            torch.tensor(configurations.sizes[used], device=self.device),
            torch.tensor(number.reshape(codes.shape), device=self.device),
        )


def _segments(features: GraphFeatures, partition: Partition, device: torch.device) -> list[Segment]:
    edges = np.asarray(features.edge_index)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    starts = np.searchsorted(edges[:, 0], np.arange(features.nodes + 1))  # first edge to an operand of each node
    degrees = np.diff(starts), np.bincount(edges[:, 1], minlength=features.nodes)
    column = np.full(features.nodes, -1)  # of each configurable node in the configuration codes
    if isinstance(features.configurations, LayoutFeatures):
        column[features.configurations.node_ids] = np.arange(len(features.configurations.node_ids))

    place = np.full(features.nodes, -1)  # position of each node in the current segment
    segments = []
    for j in range(partition.segments):
        own, halo = partition.own(j), partition.halo_of(j)
        nodes = np.concatenate([own, halo])
        place[nodes] = np.arange(len(nodes))
        inner = place[edges[_ranges(starts[nodes], starts[nodes + 1])]]
        place[nodes] = -1
        inner = inner[inner[:, 1] >= 0]
        if isinstance(features.configurations, LayoutFeatures):
            distance = distances(inner, len(nodes), np.flatnonzero(column[nodes] >= 0))
        else:
            distance = np.zeros(len(nodes), dtype=np.int64)

        order = np.lexsort((nodes, distance, distance < 0))  # nodes without a path to a configurable one come last
        nodes, columns = nodes[order], column[nodes[order]]
        near = distance[distance >= 0]
        # A segment with a halo gives the result of the whole graph, and so needs its degrees.
        whole = (degrees[0][nodes], degrees[1][nodes]) if len(halo) else None
        node_columns = (features.node_feat, features.opcode[:, None], features.node_layout)
        _, colour_node, initial_colour = np.unique(
            np.concatenate([part[nodes] for part in node_columns], axis=1),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        segments.append(
            Segment(
                node_ids=nodes,
                node_feat=torch.tensor(features.node_feat[nodes], device=device),
                opcode=torch.tensor(features.opcode[nodes], dtype=torch.int64, device=device),
                node_layout=torch.tensor(features.node_layout[nodes], dtype=torch.int64, device=device),
                initial_colour=initial_colour,
                colour_node=colour_node,
                edges=Edges(np.argsort(order)[inner], len(nodes), whole, device),
                hop_prefixes=np.cumsum(np.bincount(near, minlength=1)).tolist(),
                config_columns=columns[columns >= 0],
                pooled=torch.tensor(order < len(own), device=device) if len(halo) else None,
            )
        )
    return segments


def _ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole numbers of all ranges, concatenated."""
    counts = stops - starts
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
