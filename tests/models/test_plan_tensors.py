"""Plans as tensors: packing changes nothing, sums and maxima along them, and a model that reads no value."""

from __future__ import annotations

import pickle
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
from hlorank.models.compression.plan import PoolIndex, Sparse
from hlorank.models.cost_model import POOLINGS
from hlorank.models.plan_tensors import PackedPlan, max_nodes, propagate, tensors
from tests.models.dense_form import ALL_LAYERS, CPU, ONE_OF_EACH_MIXING, MakeInputs, MakeModel


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize(
    "block", [["sage", "residual"], ["gatv2", "instance_norm", "gps"], ["configuration_attention"]]
)
def test_packing_keeps_every_array_and_moves_them_in_one_piece(
    kind: str, block: list[str], make_model: MakeModel, make_inputs: MakeInputs
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
    assert packed.states == plan.states
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
    """Edges may be repeated, and nodes may lack neighbours."""
    node = st.integers(0, count - 1)
    pairs = torch.tensor(data.draw(st.lists(st.tuples(node, node), max_size=30)), dtype=torch.int64).reshape(-1, 2)
    matrix, x = mean_of(pairs[:, 0], pairs[:, 1], count), states(count, 3)
    convolved = SimpleConv(aggr="mean")(x, pairs.T.flip(0))
    torch.testing.assert_close(propagate(x, matrix), convolved, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: propagate(x, matrix), (x.requires_grad_(),))
    low = x.detach().to(torch.bfloat16).requires_grad_()
    mean = propagate(low, matrix)
    (gradient,) = torch.autograd.grad(mean.sum(), low)  # the gradient before it is an expanded number
    assert mean.dtype == gradient.dtype == torch.bfloat16
    torch.testing.assert_close(mean.double(), convolved, rtol=0.0, atol=8 * torch.finfo(torch.bfloat16).eps)


def test_the_matrix_by_rows_and_by_columns() -> None:
    weight = np.array([0.5, 2.0, 3.0, 4.0])
    for stored, known in ((weight, weight), (None, np.ones(4))):
        matrix = sparse(np.array([2, 0, 2, 2]), np.array([0, 1, 1, 4]), 3, stored)
        assert matrix.row is not None
        assert matrix.column_starts is not None
        assert (matrix.column.tolist(), matrix.row_starts.tolist()) == ([2, 0, 2, 2], [0, 1, 1])
        assert (matrix.row.tolist(), matrix.column_starts.tolist()) == ([2, 0, 2, 2], [0, 1, 1])
        assert matrix.column_weight is None or matrix.column_weight.tolist() == [2, 0.5, 3, 4]
        expected = np.array([[0, 0, known[0]], [0, 0, 0], [known[1], 0, known[2] + known[3]]])
        assert propagate(torch.eye(3), tensors(matrix, CPU)).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("own", "shared"), [(3, 2), (3, 0), (0, 2)])
def test_maxima_are_those_of_the_pooled_states(own: int, shared: int, dtype: torch.dtype) -> None:
    rows, colours = 4, 30
    rng = np.random.default_rng(own)
    members = [rng.integers(colours, size=own) for _ in range(rows)] + [rng.integers(colours, size=shared)]
    starts = np.cumsum([0, *map(len, members)])
    filled = [np.arange(rows) if own else np.full(rows, rows), np.full(rows, rows) if shared else np.arange(rows)]
    states, nodes, filled_rows = (
        tensors(part, CPU)
        for part in (sparse(np.concatenate(members), starts, colours, None), np.full((rows, 1), 5), np.stack(filled))
    )
    index = PoolIndex(rows, nodes, states, filled_rows, None, 0)
    values = torch.randn(colours, 7, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    expected = torch.stack([values[np.append(some, members[-1])].amax(dim=0) for some in members[:-1]])
    best = max_nodes(values, index)
    assert torch.equal(best, expected)
    with torch.no_grad():
        assert torch.equal(max_nodes(values, index), expected)
    (gradient,) = torch.autograd.grad(best.sum(), values)
    assert gradient.sum() == best.numel()


BLOCKS = [*([name] for name in ALL_LAYERS), ["GATv2Conv"], ["TransformerConv", "sage", "instance_norm", "sage"]]


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
        embedding = model(tree_map_only(Tensor, mode.from_tensor, plan))
        gradients = torch.autograd.grad(embedding.sum(), list(model.parameters()), allow_unused=True)
    assert embedding.shape == expected.shape
    assert any(gradient is not None for gradient in gradients)
