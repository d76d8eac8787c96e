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
    """Make layout features; by default copies move nothing. No tensor but those of the codes' nodes is configured."""
    if moves is None:
        moves = np.zeros((len(codebook), 3), np.float32)
    tensors = np.zeros((len(node_ids), 16), np.int32)
    tensors[:, 0], tensors[:, 4:10] = np.arange(len(node_ids)), np.arange(6)
    return LayoutFeatures(node_ids, codebook, sizes, moves, tensors, np.zeros((0, 3), np.int32), codes)
