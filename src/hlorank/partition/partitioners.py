"""Partitioners, and the partition of one graph.

A partitioner is a function of a graph and `max_nodes` that returns a label for each node: (nodes,) int64, at least 0.
Nodes of equal label form a part. Labels may skip numbers, and parts may exceed `max_nodes`: `partition_graph` cuts such
parts in topological order, and numbers the segments. To add a partitioner, write its function in a new module, and add
a line to `PARTITIONERS`.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ExtensionPoint, PartitionConfig, find, is_function
from hlorank.featurize.features import GraphFeatures, TileFeatures
from hlorank.partition.segments import Partition, local_codes, neighbours, whole_graph

Labels = NDArray[np.int64]
Partitioner = Callable[[GraphFeatures, int], Labels]

# METIS lets parts exceed their share by 3 %; asking for parts smaller by as much keeps nearly all within max_nodes.
_METIS_TOLERANCE = 1.03


def topological(features: GraphFeatures, max_nodes: int) -> Labels:
    """Return contiguous blocks of nodes in topological order, as few as possible, whose sizes differ by at most one."""
    blocks = math.ceil(features.nodes / max_nodes)
    return np.arange(features.nodes, dtype=np.int64) * blocks // features.nodes


def metis(features: GraphFeatures, max_nodes: int) -> Labels:
    """Return parts of about equal size with few edges between them (METIS, Karypis and Kumar 1998; seed 0).

    METIS may make a few parts too large.
    """
    import pymetis

    n = features.nodes
    parts = min(n, math.ceil(n / max_nodes * _METIS_TOLERANCE)) if n > max_nodes else 1
    symmetric = neighbours(features)
    adjacency = pymetis.CSRAdjacency(symmetric.indptr.astype(np.int32), symmetric.indices.astype(np.int32))
    _, part = pymetis.part_graph(parts, adjacency, options=pymetis.Options(seed=0))
    return np.array(part, dtype=np.int64)


def computation(features: GraphFeatures, max_nodes: int) -> Labels:
    """Return whole computations (blocks of node_splits), consecutive small ones together as long as they fit.

    A block that fits is never cut; a larger one shares no segment with others.
    """
    sizes = np.diff(features.node_splits)
    part = np.zeros(len(sizes), dtype=np.int64)
    filled = 0
    for i, size in enumerate(sizes.tolist()):
        fits = filled + size <= max_nodes
        part[i] = part[max(i - 1, 0)] + (not fits)
        filled = filled + size if fits else size
    return np.repeat(part, sizes)


PARTITIONERS: ExtensionPoint[Partitioner] = ExtensionPoint(
    {"topological": topological, "metis": metis, "computation": computation},
    "a function of a graph's features and max_nodes",
    lambda _, found: found if is_function(found, 2) else None,
)
"""Partitioners by the name that `partition.algorithm` gives."""


def partition_graph(features: GraphFeatures, config: PartitionConfig) -> Partition:
    """Cut one graph into segments, numbered by their first node, that have at most `max_nodes`.

    A graph of at most `max_nodes` nodes stays whole, and so does a tile kernel: its configuration is a property of the
    whole kernel, which is small.
    """
    partitioner = find(PARTITIONERS, "partition.algorithm", config.algorithm)
    if isinstance(features.configurations, TileFeatures) or features.nodes <= config.max_nodes:
        return whole_graph(features)
    part = _cut_oversize(partitioner(features, config.max_nodes), config.max_nodes)
    _, first, labels = np.unique(part, return_index=True, return_inverse=True)
    segment_of = np.argsort(np.argsort(first))[labels].astype(np.int32)
    return Partition(segment_of, local_codes(features.configurations, segment_of))


def _cut_oversize(part: Labels, max_nodes: int) -> Labels:
    """Cut each part with more than `max_nodes` nodes into as few contiguous pieces as possible, of balanced sizes."""
    sizes = np.bincount(part)
    pieces = -(-sizes // max_nodes)
    order = np.argsort(part, kind="stable")
    owner = part[order]
    place = np.arange(len(part)) - (np.cumsum(sizes) - sizes)[owner]  # of a node within its part
    labels = np.empty_like(part)
    labels[order] = (np.cumsum(pieces) - pieces)[owner] + place * pieces[owner] // sizes[owner]
    return labels
