"""Hand-made graphs for the tests of evaluation, for which only configurations and runtimes matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from tests.layouts import layout_features

MakeGraph = Callable[..., GraphFeatures]


@pytest.fixture
def make_graph() -> MakeGraph:
    """Return a function that makes a graph of two nodes: a kernel with tiles given a normalizer, else with layouts."""

    def make(
        row_of: Sequence[int], runtime: Sequence[int], normalizer: Sequence[int] | None = None, name: str = "g"
    ) -> GraphFeatures:
        distinct = max(row_of) + 1
        configurations: LayoutFeatures | TileFeatures
        if normalizer is None:
            codes = np.arange(distinct, dtype=np.uint8)[:, None]
            layouts, sizes = np.zeros((distinct, 18), dtype=np.int8), np.zeros((distinct, 18), dtype=np.float32)
            configurations = layout_features(np.array([1]), layouts, sizes, codes)
        else:
            configurations = TileFeatures(np.arange(distinct, dtype=np.float32)[:, None])
        return GraphFeatures(
            name=name,
            node_feat=np.zeros((2, 1), dtype=np.float32),
            opcode=np.zeros(2, dtype=np.uint8),
            node_layout=np.full((2, 6), -1, dtype=np.int8),
            edge_index=np.array([[1, 0]]),
            node_splits=np.array([0, 2]),
            configurations=configurations,
            row_of=np.array(row_of),
            runtime=np.array(runtime),
            normalizer=None if normalizer is None else np.array(normalizer),
        )

    return make
