"""Segments that a step trains, and the weights that keep the sum over all segments unbiased."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class SegmentSample(NamedTuple):
    """Random choices of one step among the J segments of a graph.

    Attributes:
        with_gradient: (S,) int64, the segments that are computed with gradient, increasing.
        draws: (J,) float64, uniform in [0, 1), which decide on stale-embedding dropout.
    """

    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]


def sample_segments(rng: np.random.Generator, segments: int, count: int) -> SegmentSample:
    """Draw `count` segments uniformly without replacement, all of them if there are no more."""
    with_gradient = np.sort(rng.choice(segments, size=min(count, segments), replace=False))
    return SegmentSample(with_gradient, rng.random(segments))


def segment_weights(
    sampled: NDArray[np.bool_], present: NDArray[np.bool_], keep_probability: float, draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the weight of every segment's embedding in the sum over a graph's segments.

    An embedding that is available without gradient is kept with probability p and weight 1, and dropped otherwise
    (stale-embedding dropout); for one that is not available p is 0. A sampled segment has the weight
    p + (1 - p) J / S. Over uniform sampling without replacement and independent draws, the expected weight of every
    segment is 1 (Cao et al., arXiv 2305.12322, equation 6, extended to missing entries).

    Args:
        sampled: (J,) the S segments that are computed with gradient.
        present: (J, configurations) whether an embedding is available without gradient, read before sampling.
        keep_probability: p of the available embeddings.
        draws: (J,) uniform in [0, 1), one for each segment: all configurations of a step lose the same segments, and
            so remain comparable.

    Returns:
        (J, configurations) float64.
    """
    keep = keep_probability * present
    fresh = keep + (1 - keep) * len(sampled) / sampled.sum()
    stale = draws[:, None] < keep
    weights: NDArray[np.float64] = np.where(sampled[:, None], fresh, stale)
    return weights
