"""The ways to cut a graph into segments of at most `max_nodes` nodes.

An algorithm takes one graph and `max_nodes`, and returns a label for each node, (nodes,) int64: equal labels are one
segment. Labels may skip numbers; `hlorank.partition.partition_collection.partition_graph` numbers the segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError, PartitionConfig
from hlorank.featurize.features import GraphFeatures

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Labels = NDArray[np.int64]
Algorithm = Callable[[GraphFeatures, int], Labels]

# METIS lets parts exceed their share by 3 %; asking for parts that much smaller keeps nearly all within max_nodes.
_METIS_TOLERANCE = 1.03


def _cut_oversize(part: Labels, max_nodes: int) -> Labels:
    """Cuts each part with more than `max_nodes` nodes into as few contiguous pieces as possible, of balanced sizes."""
    sizes = np.bincount(part)
    pieces = -(-sizes // max_nodes)
    order = np.argsort(part, kind="stable")
    owner = part[order]
    place = np.arange(len(part)) - (np.cumsum(sizes) - sizes)[owner]  # of a node among those of its part
    labels = np.empty_like(part)
    labels[order] = (np.cumsum(pieces) - pieces)[owner] + place * pieces[owner] // sizes[owner]
    return labels


def neighbours(features: GraphFeatures) -> csr_array[Any]:
    """(nodes, nodes) int32, not 0 where an edge of either direction joins two nodes."""
    from scipy.sparse import csr_array

    consumer, producer = features.edge_index.T
    shape = (features.nodes, features.nodes)
    directed = csr_array((np.ones(len(consumer), dtype=np.int32), (consumer, producer)), shape=shape)
    either: csr_array[Any] = directed + directed.T  # repeated edges become one
    return either


def topological(features: GraphFeatures, max_nodes: int) -> Labels:
    """Contiguous blocks of nodes in topological order, as few as possible, whose sizes differ by at most one."""
    return _cut_oversize(np.zeros(features.nodes, dtype=np.int64), max_nodes)


def metis(features: GraphFeatures, max_nodes: int) -> Labels:
    """METIS (Karypis and Kumar 1998): parts of about equal size with few edges between them, seed 0.

    The few parts that METIS makes too large are cut in topological order.
    """
    import pymetis

    n = features.nodes
    parts = min(n, math.ceil(n / max_nodes * _METIS_TOLERANCE)) if n > max_nodes else 1
    symmetric = neighbours(features)
    adjacency = pymetis.CSRAdjacency(symmetric.indptr.astype(np.int32), symmetric.indices.astype(np.int32))
    _, part = pymetis.part_graph(parts, adjacency, options=pymetis.Options(seed=0))
    return _cut_oversize(np.array(part, dtype=np.int64), max_nodes)


def computation(features: GraphFeatures, max_nodes: int) -> Labels:
    """Whole computations (blocks of node_splits): consecutive small ones together, as far as they fit.

    A block that fits is never cut; a larger one is cut in topological order and shares no segment with others.
    """
    sizes = np.diff(features.node_splits)
    part = np.zeros(len(sizes), dtype=np.int64)
    filled = 0
    for i, size in enumerate(sizes.tolist()):
        fits = filled + size <= max_nodes
        part[i] = part[max(i - 1, 0)] + (not fits)
        filled = filled + size if fits else size
    return _cut_oversize(np.repeat(part, sizes), max_nodes)


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {"topological": topological, "metis": metis, "computation": computation}
)


def chosen_algorithm(config: PartitionConfig) -> Algorithm:
    """The algorithm that the configuration names.

    Raises:
        ConfigError: no such algorithm, max_nodes below 1, or halo below 0.
    """
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(f"partition.algorithm={config.algorithm}: choose one of {', '.join(ALGORITHMS)}")
    if config.max_nodes < 1:
        raise ConfigError(f"partition.max_nodes={config.max_nodes}: set it to at least 1")
    if config.halo < 0:
        raise ConfigError(f"partition.halo={config.halo}: set it to at least 0 (hops)")
    return ALGORITHMS[config.algorithm]
