"""Segments of one graph, their halos and their local configurations."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, distinct_rows
from hlorank.files import DataError


def no_halo() -> NDArray[np.int32]:
    """Return the halo of a partition that drops the edges between segments: (0, 2) int32."""
    return np.zeros((0, 2), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut into segments; DataError where a node has no segment, a segment no node, or the shapes disagree."""

    segment_of: NDArray[np.int32]  # (nodes,), the segment of each node, 0..J-1
    # (distinct configurations, J); two configurations have equal entries in a column if they agree at all configurable
    # nodes of that segment and of its halo
    local_codes: NDArray[np.unsignedinteger[Any]]
    # (halo rows, 2) in increasing order; in a row [j, v], node v belongs to another segment and is near segment j: it
    # is computed with segment j, but not pooled
    halo: NDArray[np.int32] = field(default_factory=no_halo)

    def __post_init__(self) -> None:
        if (negative := self.segment_of < 0).any():
            node = int(np.argmax(negative))
            raise DataError("segment_of", "a segment for every node", f"{self.segment_of[node]} for node {node}")
        sizes = np.bincount(self.segment_of, minlength=self.local_codes.shape[1])
        if len(sizes) != self.local_codes.shape[1]:
            raise DataError("segment_of", f"segments 0..{self.local_codes.shape[1] - 1}", len(sizes) - 1)
        if not sizes.all():
            raise DataError("segment_of", "no empty segment", f"segment {int(np.argmin(sizes))} is empty")
        self._check_halo(np.array([len(sizes), len(self.segment_of)]))

    def _check_halo(self, bounds: NDArray[np.int64]) -> None:
        if self.halo.ndim != 2 or self.halo.shape[1] != 2:
            raise DataError("halo", "shape (any, 2)", self.halo.shape)
        outside = ((self.halo < 0) | (self.halo >= bounds)).any(axis=1)
        if outside.any():
            expected = f"segments 0..{bounds[0] - 1} and nodes 0..{bounds[1] - 1}"
            raise DataError("halo", expected, self.halo[np.argmax(outside)].tolist())
        own = self.segment_of[self.halo[:, 1]] == self.halo[:, 0]
        if own.any():
            raise DataError("halo", "nodes of other segments", self.halo[np.argmax(own)].tolist())
        if (np.diff(self.halo.astype(np.int64) @ [bounds[1], 1]) <= 0).any():
            raise DataError("halo", "rows [segment, node] in increasing order", "another order")

    @property
    def segments(self) -> int:
        """Number of segments, J."""
        return int(self.local_codes.shape[1])

    @cached_property
    def local_counts(self) -> NDArray[np.int64]:
        """Number of distinct local configurations of each segment: (J,) int64."""
        counts: NDArray[np.int64] = self.local_codes.max(axis=0).astype(np.int64) + 1
        return counts

    @cached_property
    def _members(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        later = np.arange(1, self.segments)
        order = np.argsort(self.segment_of, kind="stable")
        inner = np.split(order, np.searchsorted(self.segment_of[order], later))
        halo = np.split(self.halo[:, 1].astype(np.int64), np.searchsorted(self.halo[:, 0], later))
        return inner, halo

    def inner(self, j: int) -> NDArray[np.int64]:
        """Return the nodes of segment j without its halo, increasing: int64."""
        return self._members[0][j]

    def halo_of(self, j: int) -> NDArray[np.int64]:
        """Return the nodes of the halo of segment j, increasing: int64."""
        return self._members[1][j]


def whole_graph(features: GraphFeatures) -> Partition:
    """Return the partition into one segment, whose local configurations are the graph's distinct configurations."""
    codes = np.arange(features.distinct, dtype=np.min_scalar_type(features.distinct - 1))
    return Partition(np.zeros(features.nodes, dtype=np.int32), codes[:, None])


def neighbours(features: GraphFeatures) -> csr_array[Any]:
    """Return the adjacency matrix: (nodes, nodes) int32, not 0 where an edge of either direction joins two nodes."""
    consumer, producer = features.edge_index.T
    shape = (features.nodes, features.nodes)
    directed = csr_array((np.ones(len(consumer), dtype=np.int32), (consumer, producer)), shape=shape)
    either: csr_array[Any] = directed + directed.T  # repeated edges become one
    return either


def halo_rows(features: GraphFeatures, segment_of: NDArray[np.int32], hops: int) -> NDArray[np.int32]:
    """Return `Partition.halo`: the nodes at most `hops` edges, of either direction, away from a segment's nodes."""
    adjacency = neighbours(features).astype(np.bool_)
    inner = np.ones(features.nodes, dtype=np.bool_), (segment_of, np.arange(features.nodes))
    near = csr_array(inner, shape=(int(segment_of.max()) + 1, features.nodes))
    for _ in range(hops):
        grown = near + near @ adjacency
        if grown.nnz == near.nnz:
            break
        near = grown
    segment, node = near.nonzero()
    outside = segment_of[node] != segment
    rows = np.stack([segment[outside], node[outside]], axis=1).astype(np.int32)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def local_codes(
    configurations: LayoutFeatures, segment_of: NDArray[np.int32], halo: NDArray[np.int32]
) -> NDArray[np.unsignedinteger[Any]]:
    """Return `Partition.local_codes`, of the smallest type, with numbers in order of first appearance.

    Time is linear in the codes of the segments and their halos, memory in the codes of one segment.
    """
    node_ids = configurations.node_ids
    configurable = np.isin(halo[:, 1], node_ids)
    segment = np.concatenate([segment_of[node_ids], halo[configurable, 0]])
    column = np.concatenate([np.arange(len(node_ids)), np.searchsorted(node_ids, halo[configurable, 1])])
    configuration_count = len(configurations.codes)
    local = np.zeros((configuration_count, int(segment_of.max()) + 1), np.min_scalar_type(configuration_count - 1))
    for j in np.unique(segment):
        # Indexing copies only the columns of one segment; the codes may be memory-mapped.
        local[:, j] = distinct_rows(configurations.codes[:, column[segment == j]])[1]
    return local.astype(np.min_scalar_type(int(local.max())), copy=False)
