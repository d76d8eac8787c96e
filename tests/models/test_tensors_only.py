"""The model runs on tensors alone: shapes decide what it does, and nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from hlorank.models.cost_model import POOLINGS, CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import tensors
from tests.models.run_layer import ALL_LAYERS, ONE_OF_EACH_MIXING

MakeModel = Callable[..., CostModel]
MakeInputs = Callable[..., GraphInputs]
BLOCKS = [*([name] for name in ALL_LAYERS), ["GATv2Conv"], ["TransformerConv", "sage", "instance_norm", "sage"]]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "join", "block"),
    [*(("layout", "early", block) for block in BLOCKS), *(("tile", "late", [name]) for name in ONE_OF_EACH_MIXING)],
)
def test_shapes_alone_decide_what_is_computed(
    kind: str, join: str, block: list[str], make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    """Fake tensors have no values: a model that reads one fails."""
    model = make_model(
        kind, block=["linear", *block, "gelu"], join=join, pooling=list(POOLINGS),
        operators={"GATv2Conv": {"self_loops": True}},
    )  # fmt: skip
    plan: Any = tensors(make_inputs(kind=kind).plan({0: np.array([3, 0, 3, 7])}, model.recipe), CPU)
    expected = model(plan)
    with FakeTensorMode() as mode:
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                setattr(module, name, torch.nn.Parameter(mode.from_tensor(value)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, mode.from_tensor(buffer))
        embedding = model(tree_map_only(torch.Tensor, mode.from_tensor, plan))
        gradients = torch.autograd.grad(embedding.sum(), list(model.parameters()), allow_unused=True)
    assert embedding.shape == expected.shape
    assert any(gradient is not None for gradient in gradients)
