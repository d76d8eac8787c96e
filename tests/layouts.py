"""Layout features for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.featurize.features import LayoutFeatures


def layout_features(
    node_ids: NDArray[np.int64],
    codebook: NDArray[np.int8],
    sizes: NDArray[np.float32],
    codes: NDArray[Any],
    moves: NDArray[np.float32] | None = None,
) -> LayoutFeatures:
    """Make layout features; by default copies move nothing."""
    if moves is None:
        moves = np.zeros((len(codebook), 3), np.float32)
    return LayoutFeatures(node_ids, codebook, sizes, moves, codes)
