"""Plans as tensors: packing changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan, tensors

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize(
    "block", [["sage", "residual"], ["gatv2", "instance_norm", "gps"], ["configuration_attention"]]
)
def test_packing_keeps_every_array(
    kind: str, block: list[str], make_model: Callable[..., CostModel], make_inputs: Callable[..., GraphInputs]
) -> None:
    model, graph = make_model(kind, block=block), make_inputs(kind=kind)
    plan = graph.plan({0: np.array([3, 0, 3])}, model.recipe)
    packed = PackedPlan(plan)
    sent: PackedPlan = pickle.loads(pickle.dumps(packed))
    expected, shape = tree_flatten(tensors(plan, CPU))
    for one in (packed, sent, packed.to(CPU)):
        found, same = tree_flatten(one.unpack())
        assert same == shape
        assert [getattr(part, "dtype", None) for part in found] == [getattr(part, "dtype", None) for part in expected]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert packed.rows == plan.rows
    size = sum(part.nbytes for part in expected if isinstance(part, torch.Tensor))
    assert size <= packed.bytes <= size + 16 * len({part.dtype for part in expected if isinstance(part, torch.Tensor)})


def test_a_plan_moves_in_one_piece(
    make_model: Callable[..., CostModel], make_inputs: Callable[..., GraphInputs]
) -> None:
    packed = PackedPlan(make_inputs().plan({0: np.arange(4)}, make_model().recipe))
    moved: Any = packed.to(torch.device("meta")).unpack()
    parts = [part for part in tree_flatten(moved)[0] if isinstance(part, torch.Tensor)]
    assert {part.device.type for part in parts} == {"meta"}
    assert len({part.untyped_storage()._cdata for part in parts}) == 1
