"""First states of nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hlorank.models.compression.colouring import Colouring, NodeStates
from hlorank.models.inputs import Segment


@pytest.fixture(scope="session")
def first_state() -> Callable[..., NodeStates]:
    """Makes random first states, in which some configurations agree at a node, and some nodes unless they are apart."""

    def make(segment: Segment, configurations: int, width: int, apart: bool) -> NodeStates:
        rng = np.random.default_rng(segment.nodes)
        reached = segment.reached(0)
        keys = np.where(apart, np.arange(segment.nodes), rng.integers(5, size=segment.nodes)) * 10
        rows = Colouring.distinct(
            keys[:reached, None] + rng.integers(1, 3, size=(reached, configurations)), keys[reached:]
        )
        generator = torch.Generator().manual_seed(0)
        return NodeStates(torch.randn(len(rows), width, dtype=torch.float64, generator=generator), rows)

    return make
