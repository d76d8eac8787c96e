"""A graph's features as the tensors that a cost model reads, segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.models.adjacency import Adjacency
from hlorank.partition.segments import Partition


@dataclass(frozen=True)
class InputSizes:
    """What a cost model must know of its inputs before it sees any.

    Attributes:
        kind: layout or tile.
        node_columns: numeric columns of a node.
        opcodes: rows of the opcode vocabulary, unknown included.
        tile_columns: numeric columns of a tile configuration, 0 for layouts.
    """

    kind: Literal["layout", "tile"]
    node_columns: int
    opcodes: int
    tile_columns: int


@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of one segment and the edges between them.

    Attributes:
        node_feat: (nodes, node columns) float32.
        opcode: (nodes,) int64.
        node_layout: (nodes, 6) int64, minor_to_major, -1 padded.
        operands: from each node's operands to the node.
        users: from each node's users to the node.
        config_nodes: (k,) int64, the configurable nodes, as indices into this segment.
        config_columns: (k,) int64, their columns in the graph's configuration codes.
    """

    node_feat: Tensor
    opcode: Tensor
    node_layout: Tensor
    operands: Adjacency
    users: Adjacency
    config_nodes: Tensor
    config_columns: NDArray[np.int64]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.opcode)


@dataclass(frozen=True, eq=False)
class LayoutBatch:
    """Some layout configurations of a segment.

    Attributes:
        codebook: (U, 18) int64, layout values -1..5.
        codes: (configurations, k) int64, one row of the codebook for each configurable node of the segment.
    """

    codebook: Tensor
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

    The nodes lie in memory as tensors; configurations stay in their memory map, and a step reads only its rows.
    """

    def __init__(self, features: GraphFeatures, partition: Partition, device: torch.device) -> None:
        self.features = features
        self.partition = partition
        self.device = device
        self.segments: Sequence[Segment] = _segments(features, partition.segment_of, device)
        if isinstance(features.configurations, LayoutFeatures):
            self._codebook = torch.tensor(features.configurations.codebook, dtype=torch.int64, device=device)

    def configurations(self, rows: NDArray[np.int64], segment: Segment) -> ConfigurationBatch:
        """Some distinct configurations as one segment sees them.

        Args:
            rows: (configurations,) int64, indices of distinct configurations.
            segment: one of `segments`.
        """
        configurations = self.features.configurations
        if isinstance(configurations, TileFeatures):
            return TileBatch(torch.tensor(configurations.feat[rows], device=self.device))
        codes = configurations.codes[rows][:, segment.config_columns].astype(np.int64)
        return LayoutBatch(self._codebook, torch.tensor(codes, device=self.device))


def _segments(features: GraphFeatures, segment_of: NDArray[np.int32], device: torch.device) -> list[Segment]:
    order = np.argsort(segment_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(segment_of))])
    local = np.empty(len(order), dtype=np.int64)  # a node's index inside its segment
    local[order] = np.arange(len(order)) - starts[segment_of[order]]

    edges = np.asarray(features.edge_index)
    inner = edges[segment_of[edges[:, 0]] == segment_of[edges[:, 1]]]
    inner = inner[np.argsort(segment_of[inner[:, 0]], kind="stable")]
    edge_starts = np.searchsorted(segment_of[inner[:, 0]], np.arange(len(starts)))

    configurations = features.configurations
    node_ids = np.asarray(configurations.node_ids) if isinstance(configurations, LayoutFeatures) else np.zeros(0, int)

    segments = []
    for j in range(len(starts) - 1):
        nodes = order[starts[j] : starts[j + 1]]
        own = torch.from_numpy(local[inner[edge_starts[j] : edge_starts[j + 1]]])
        columns = np.flatnonzero(segment_of[node_ids] == j)
        segments.append(
            Segment(
                node_feat=torch.tensor(features.node_feat[nodes], device=device),
                opcode=torch.tensor(features.opcode[nodes], dtype=torch.int64, device=device),
                node_layout=torch.tensor(features.node_layout[nodes], dtype=torch.int64, device=device),
                operands=Adjacency.from_edges(own[:, 0], own[:, 1], len(nodes)).to(device),
                users=Adjacency.from_edges(own[:, 1], own[:, 0], len(nodes)).to(device),
                config_nodes=torch.tensor(local[node_ids[columns]], dtype=torch.int64, device=device),
                config_columns=columns,
            )
        )
    return segments
