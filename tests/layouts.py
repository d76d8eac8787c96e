"""Layout features for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.featurize.features import LayoutFeatures


def layout_features(
    node_ids: NDArray[np.int64], codebook: NDArray[np.int8], sizes: NDArray[np.float32], codes: NDArray[Any]
) -> LayoutFeatures:
    """Make layout features without copies."""
    own, shares = np.full((len(node_ids), 18), -1, np.int8), np.zeros((len(node_ids), 3), np.float32)
    return LayoutFeatures(node_ids, codebook, sizes, codes, own, shares)
