"""Halos: the nodes around a segment whose states its own nodes need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlorank.featurize.features import GraphFeatures
from hlorank.partition.partitioners import neighbours


def halo_rows(features: GraphFeatures, segment_of: NDArray[np.int32], hops: int) -> NDArray[np.int32]:
    """The nodes within some edges, of either direction, of each segment.

    Args:
        features: of one graph.
        segment_of: (nodes,) the segment of each node, 0..J-1.
        hops: how many edges, at least 0.

    Returns:
        (halo rows, 2) int32, as `Partition.halo`.
    """
    from scipy.sparse import csr_array

    adjacency = neighbours(features).astype(np.bool_)
    own = np.ones(features.nodes, dtype=np.bool_), (segment_of, np.arange(features.nodes))
    near = csr_array(own, shape=(int(segment_of.max()) + 1, features.nodes))
    for _ in range(hops):
        grown = near + near @ adjacency
        if grown.nnz == near.nnz:
            break
        near = grown
    segment, node = near.nonzero()
    outside = segment_of[node] != segment
    rows = np.stack([segment[outside], node[outside]], axis=1).astype(np.int32)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]
