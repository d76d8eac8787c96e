"""Segments of one graph and their local configurations."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, distinct_rows
from hlorank.files import DataError


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut into segments; DataError where a node has no segment, a segment no node, or the shapes disagree."""

    segment_of: NDArray[np.int32]  # (nodes,), the segment of each node, 0..J-1
    # (distinct configurations, J); two configurations have equal entries in a column if they agree at all configurable
    # nodes of that segment
    local_codes: NDArray[np.unsignedinteger[Any]]

    def __post_init__(self) -> None:
        if (negative := self.segment_of < 0).any():
            node = int(np.argmax(negative))
            raise DataError("segment_of", "a segment for every node", f"{self.segment_of[node]} for node {node}")
        sizes = np.bincount(self.segment_of, minlength=self.local_codes.shape[1])
        if len(sizes) != self.local_codes.shape[1]:
            raise DataError("segment_of", f"segments 0..{self.local_codes.shape[1] - 1}", len(sizes) - 1)
        if not sizes.all():
            raise DataError("segment_of", "no empty segment", f"segment {int(np.argmin(sizes))} is empty")

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
    def inner(self) -> list[NDArray[np.int64]]:
        """The nodes of each segment, increasing: int64."""
        order = np.argsort(self.segment_of, kind="stable")
        return np.split(order, np.searchsorted(self.segment_of[order], np.arange(1, self.segments)))


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


def local_codes(configurations: LayoutFeatures, segment_of: NDArray[np.int32]) -> NDArray[np.unsignedinteger[Any]]:
    """Return `Partition.local_codes`, of the smallest type, with numbers in order of first appearance.

    Time is linear in the codes of the segments, memory in the codes of one segment.
    """
    segment = segment_of[configurations.node_ids]
    configuration_count = len(configurations.codes)
    local = np.zeros((configuration_count, int(segment_of.max()) + 1), np.min_scalar_type(configuration_count - 1))
    for j in np.unique(segment):
        # Indexing copies only the columns of one segment; the codes may be memory-mapped.
        local[:, j] = distinct_rows(configurations.codes[:, segment == j])[1]
    return local.astype(np.min_scalar_type(int(local.max())), copy=False)
