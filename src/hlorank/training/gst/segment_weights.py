"""How much each segment's embedding weighs, so that their sum is unbiased whatever is sampled, dropped or missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def segment_weights(
    sampled: NDArray[np.bool_], present: NDArray[np.bool_], keep_probability: float, draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weight of every segment's embedding in the sum over a graph's segments.

    An embedding that is there without being computed is kept with probability p and weight 1, and dropped otherwise
    (stale embedding dropout); one that is not there has p = 0. A sampled segment weighs p + (1 - p) J / S. Over
    uniform sampling without replacement and independent draws, every segment's expected weight is 1 (Cao et al.,
    arXiv 2305.12322, equation 6, extended to missing entries).

    Args:
        sampled: (J,) the S segments that are computed with gradient.
        present: (J, configurations) whether an embedding is there without computing it, read before sampling.
        keep_probability: p of the embeddings that are there.
        draws: (J,) uniform in [0, 1), one a segment: configurations of a step lose the same segments, and so stay
            comparable.

    Returns:
        (J, configurations) float64.
    """
    keep = keep_probability * present
    fresh = keep + (1 - keep) * len(sampled) / sampled.sum()
    stale = draws[:, None] < keep
    weights: NDArray[np.float64] = np.where(sampled[:, None], fresh, stale)
    return weights
