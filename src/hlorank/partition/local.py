"""Segment-local configurations: what of a configuration a segment can see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.featurize.distinct import distinct_rows
from hlorank.featurize.features import LayoutFeatures


def local_codes(configurations: LayoutFeatures, segment_of: NDArray[np.int32]) -> NDArray[np.unsignedinteger[Any]]:
    """Numbers the distinct configurations of the configurable nodes inside each segment.

    Time is linear in the codes, memory in the codes of one segment.

    Args:
        configurations: of one graph.
        segment_of: (nodes,) the segment of each node, 0..J-1.

    Returns:
        (distinct configurations, J), the smallest unsigned type that fits: two configurations have the same number in
        a column if and only if they agree at all configurable nodes of that segment. Numbers count from 0 in order of
        first appearance; a segment without configurable nodes has only 0.
    """
    segment_of_column = segment_of[configurations.node_ids]
    configuration_count = len(configurations.codes)
    local = np.zeros((configuration_count, int(segment_of.max()) + 1), np.min_scalar_type(configuration_count - 1))
    for segment in np.unique(segment_of_column):
        columns = np.flatnonzero(segment_of_column == segment)
        # Indexing copies these columns only, out of codes that may lie in a file.
        local[:, segment] = distinct_rows(configurations.codes[:, columns])[1]
    return local.astype(np.min_scalar_type(int(local.max())), copy=False)
