"""Tiny cost models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hlorank.config import ModelConfig
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import InputSizes, Segment
from hlorank.models.state import Rows, State

CONFIG = ModelConfig(
    width=6,
    stem=[],
    blocks=2,
    block=["layer_norm", "sage", "gelu", "residual"],
    readout=["layer_norm"],
    pooling=["mean", "max"],
    head="mlp",
    directions="separate",
    join="early",
    override_layout=False,
    opcode_width=3,
    opcode_init=False,
    layout_width=2,
    layout_sizes=True,
    heads=2,
    dropout=0.0,
    drop_edge=0.0,
    permutations=1,
)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., CostModel]:
    """Makes a float64 model that fits random graphs; keywords change its configuration."""

    def make(kind: str = "layout", aggregation: str = "sum", **changes: object) -> CostModel:
        torch.manual_seed(0)
        sizes = InputSizes("tile" if kind == "tile" else "layout", 4, 6, 5 if kind == "tile" else 0)
        return CostModel(ModelConfig(**{**vars(CONFIG), **changes}), sizes, aggregation).double()

    return make


@pytest.fixture(scope="session")
def first_state() -> Callable[..., State]:
    """Makes random first states, in which some configurations agree at a node, and some nodes unless they are apart."""

    def make(segment: Segment, configurations: int, width: int, apart: bool) -> State:
        rng = np.random.default_rng(segment.nodes)
        reached = segment.reached(0)
        keys = np.where(apart, np.arange(segment.nodes), rng.integers(5, size=segment.nodes)) * 10
        rows = Rows.distinct(keys[:reached, None] + rng.integers(1, 3, size=(reached, configurations)), keys[reached:])
        generator = torch.Generator().manual_seed(0)
        return State(torch.randn(len(rows), width, dtype=torch.float64, generator=generator), rows)

    return make
