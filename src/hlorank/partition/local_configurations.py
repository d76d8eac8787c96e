"""Segment-local configurations: what of a configuration a segment can see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.featurize.distinct import distinct_rows
from hlorank.featurize.features import LayoutFeatures


def local_codes(
    configurations: LayoutFeatures, segment_of: NDArray[np.int32], halo: NDArray[np.int32]
) -> NDArray[np.unsignedinteger[Any]]:
    """Numbers the distinct configurations of the configurable nodes of each segment and its halo.

    Time is linear in the codes that segments see, memory in the codes of one segment.

    Args:
        configurations: of one graph.
        segment_of: (nodes,) the segment of each node, 0..J-1.
        halo: (halo rows, 2), as `Partition.halo`.

    Returns:
        (distinct configurations, J), the smallest unsigned type that fits: two configurations have the same number in
        a column if and only if they agree at all configurable nodes of that segment and its halo. Numbers count from
        0 in order of first appearance; a segment that sees no configurable node has only 0.
    """
    node_ids = configurations.node_ids
    configurable = np.isin(halo[:, 1], node_ids)
    segment = np.concatenate([segment_of[node_ids], halo[configurable, 0]])
    column = np.concatenate([np.arange(len(node_ids)), np.searchsorted(node_ids, halo[configurable, 1])])
    configuration_count = len(configurations.codes)
    local = np.zeros((configuration_count, int(segment_of.max()) + 1), np.min_scalar_type(configuration_count - 1))
    for j in np.unique(segment):
        # Indexing copies these columns only, out of codes that may lie in a file.
        local[:, j] = distinct_rows(configurations.codes[:, column[segment == j]])[1]
    return local.astype(np.min_scalar_type(int(local.max())), copy=False)
