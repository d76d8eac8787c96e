"""Plans as tensors: packing changes nothing, sums and maxima along them, and a model that reads no value."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch_geometric.nn import SimpleConv

from hlorank.models.compression.build_plan import sparse
from hlorank.models.compression.plan import Sparse
from hlorank.models.cost_model import POOLINGS
from hlorank.models.plan_tensors import PackedPlan, max_nodes, propagate, tensors
from tests.graphs import make_inputs, make_model
from tests.models.dense_form import ALL_LAYERS, CPU, GATE


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize(
    "block", [["sage", "residual"], ["gatv2", "instance_norm", "gps"], ["configuration_attention"]]
)
def test_packing_keeps_every_array_and_moves_them_in_one_piece(kind: str, block: list[str]) -> None:
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
    assert packed.states == plan.states
    without = PackedPlan(graph.plan({0: np.array([3, 0, 3])}, replace(model.recipe, gradients=False)))
    assert without.bytes < packed.bytes or block == ["configuration_attention"]
    parts = [part for part in expected if isinstance(part, Tensor)]
    size = sum(part.nbytes for part in parts)
    assert size <= packed.bytes <= size + 16 * len({part.dtype for part in parts})
    moved: Any = packed.to(torch.device("meta")).unpack()
    parts = [part for part in tree_flatten(moved)[0] if isinstance(part, Tensor)]
    assert {part.device.type for part in parts} == {"meta"}
    assert len({part.untyped_storage()._cdata for part in parts}) == 1


def mean_of(nodes: Tensor, neighbours: Tensor, count: int) -> Sparse[Tensor]:
    order = np.argsort(nodes.numpy(), kind="stable")
    degree = np.bincount(nodes.numpy(), minlength=count)
    weight = 1 / degree.clip(min=1)[nodes.numpy()[order]]
    matrix = sparse(neighbours.numpy()[order], np.append(0, np.cumsum(degree)), count, weight)
    result: Sparse[Tensor] = tensors(matrix, CPU)
    return result


def states(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@given(count=st.integers(1, 12), data=st.data())
@settings(max_examples=30)
def test_means_equal_simple_conv(count: int, data: st.DataObject) -> None:
    node = st.integers(0, count - 1)
    pairs = torch.tensor(data.draw(st.lists(st.tuples(node, node), max_size=30)), dtype=torch.int64).reshape(-1, 2)
    matrix, x = mean_of(pairs[:, 0], pairs[:, 1], count), states(count, 3)
    convolved = SimpleConv(aggr="mean")(x, pairs.T.flip(0))
    torch.testing.assert_close(propagate(x, matrix), convolved, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: propagate(x, matrix), (x.requires_grad_(),))
    for added in (states(1, 3)[0], states(len(matrix.row_starts), 3)):
        torch.testing.assert_close(propagate(x, matrix, added), convolved + added, rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(lambda x, y: propagate(x, matrix, y), (x, added.requires_grad_()))
    low = x.detach().to(torch.bfloat16).requires_grad_()
    mean = propagate(low, matrix)
    (gradient,) = torch.autograd.grad(mean.sum(), low)  # the gradient before it is an expanded number
    assert mean.dtype == gradient.dtype == torch.bfloat16
    torch.testing.assert_close(mean.double(), convolved, rtol=0.0, atol=8 * torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_maxima_are_the_same_with_and_without_gradients(dtype: torch.dtype) -> None:
    index = tensors(make_inputs().plan({0: np.arange(4)}, make_model().recipe).pool, CPU)
    values = torch.randn(int(index.states.column.max()) + 1, 7).to(dtype).requires_grad_()
    best = max_nodes(values, index)
    with torch.no_grad():
        assert torch.equal(max_nodes(values, index), best)
    (gradient,) = torch.autograd.grad(best.sum(), values)
    assert gradient.sum() == best.numel()


DENSE, COMPARING = ["gps", "instance_norm", "linear_attention"], ["configuration_attention", GATE]
SPARSE = [*(name for name in ALL_LAYERS if name not in (*DENSE, *COMPARING)), "GATv2Conv", "TransformerConv", "sage"]


@pytest.mark.parametrize(
    ("kind", "join", "block"),
    [
        ("layout", "early", [*SPARSE, *DENSE, *SPARSE]),
        ("layout", "late", [*SPARSE, *COMPARING, *SPARSE, *DENSE, "linear", *COMPARING, "linear"]),
        ("tile", "late", [*SPARSE, *COMPARING, *DENSE, "linear"]),
    ],
)
def test_shapes_alone_decide_what_is_computed(kind: str, join: str, block: list[str]) -> None:
    """Fake tensors have no values: a model that reads one fails."""
    operators = {"GATv2Conv": {"self_loops": True}}
    model = make_model(kind, width=8, blocks=1, block=block, join=join, pooling=list(POOLINGS), operators=operators)
    plan: Any = tensors(make_inputs(kind=kind).plan({0: np.array([3, 0, 3, 7])}, model.recipe), CPU)
    expected = model(plan)
    with FakeTensorMode() as mode:
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                setattr(module, name, torch.nn.Parameter(mode.from_tensor(value)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, mode.from_tensor(buffer))
        embedding = model(tree_map_only(Tensor, mode.from_tensor, plan))
        gradients = torch.autograd.grad(embedding.sum(), list(model.parameters()), allow_unused=True)
    assert embedding.shape == expected.shape
    assert any(gradient is not None for gradient in gradients)
