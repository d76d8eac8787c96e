"""States of nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hlorank.models.compression.colouring import Colouring
from hlorank.models.inputs import Segment
from hlorank.models.node_states import NodeStates


@pytest.fixture(scope="session")
def make_states() -> Callable[..., NodeStates]:
    """A function that makes random states; configurations share colours at a node, and with `share` nodes do too."""

    def make(segment: Segment, configurations: int, width: int, share: bool) -> NodeStates:
        rng = np.random.default_rng(segment.nodes)
        prefix = segment.k_hop_prefix(0)
        keys = np.where(share, rng.integers(5, size=segment.nodes), np.arange(segment.nodes)) * 10
        colouring = Colouring.of_keys(
            keys[:prefix, None] + rng.integers(1, 3, size=(prefix, configurations)), keys[prefix:]
        )
        generator = torch.Generator().manual_seed(0)
        return NodeStates(torch.randn(len(colouring), width, dtype=torch.float64, generator=generator), colouring)

    return make
