"""A segment, its edges for PyTorch Geometric, and layers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hlorank.models.compression.segment import Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers import registry as names
from hlorank.models.layers.layer import Layer


@pytest.fixture
def segment(make_inputs: Callable[..., GraphInputs]) -> Segment:
    """A graph of 24 nodes, 6 of them configurable."""
    (only,) = make_inputs().segments
    return only


@pytest.fixture
def edge_indices(segment: Segment) -> tuple[Tensor, Tensor]:
    """The edges from operands and those from users, (2, edges), from source to target."""
    user, operand = torch.from_numpy(segment.edges.ends).T
    return torch.stack([operand, user]), torch.stack([user, operand])


@pytest.fixture(scope="session")
def make_layer(make_model: Callable[..., CostModel]) -> Callable[..., Layer]:
    """A function that makes a layer by its name, in float64; keywords change the configuration."""
    config = make_model().config

    def make(name: str, **changes: Any) -> Layer:
        torch.manual_seed(0)
        changed = config.model_copy(update=changes)
        return names.make_layer(name, changed, "model.block", changed.width).double()

    return make
