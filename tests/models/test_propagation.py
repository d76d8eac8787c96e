"""Sums over neighbours, against dense matrices and PyTorch Geometric."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import SimpleConv

from hlorank.models.compression.build_plan import sparse
from hlorank.models.compression.plan import Sparse
from hlorank.models.plan_tensors import propagate, tensors


@st.composite
def edges(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Draw nodes, neighbours and the number of nodes; edges may be repeated, and nodes may lack neighbours."""
    count = draw(st.integers(1, 12))
    node = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=30))
    columns = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1], count


def mean_of(nodes: Tensor, neighbours: Tensor, count: int) -> Sparse[Tensor]:
    order = np.argsort(nodes.numpy(), kind="stable")
    degree = np.bincount(nodes.numpy(), minlength=count)
    weight = 1 / degree.clip(min=1)[nodes.numpy()[order]]
    matrix = sparse(neighbours.numpy()[order], np.append(0, np.cumsum(degree)), count, weight)
    result: Sparse[Tensor] = tensors(matrix, torch.device("cpu"))
    return result


def states(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@given(edges())
@settings(deadline=None, max_examples=50)
def test_equals_the_dense_formula_and_simple_conv(drawn: tuple[Tensor, Tensor, int]) -> None:
    nodes, neighbours, count = drawn
    x = states(count, 3)
    mean = propagate(x, mean_of(nodes, neighbours, count))
    matrix = torch.zeros(count, count, dtype=torch.float64)
    matrix.index_put_((nodes, neighbours), torch.ones(len(nodes), dtype=torch.float64), accumulate=True)
    expected = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1) @ x
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
    convolved = SimpleConv(aggr="mean")(x, torch.stack([neighbours, nodes]))
    torch.testing.assert_close(mean, convolved, rtol=1e-12, atol=1e-12)


@given(edges())
@settings(deadline=None, max_examples=15)
def test_gradients(drawn: tuple[Tensor, Tensor, int]) -> None:
    adjacency = mean_of(*drawn)
    x = states(drawn[2], 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: propagate(x, adjacency), (x,))


def test_known_values() -> None:
    adjacency = mean_of(torch.tensor([2, 0, 2, 2]), torch.tensor([0, 1, 1, 1]), 4)
    mean = propagate(torch.tensor([[3.0], [6.0], [100.0], [100.0]]), adjacency)
    assert mean.tolist() == [[6.0], [0.0], [5.0], [0.0]]


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
        assert propagate(torch.eye(3), tensors(matrix, torch.device("cpu"))).tolist() == expected.tolist()


def test_gradients_that_are_not_contiguous() -> None:
    matrix = mean_of(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3)
    x = states(4, 3).T.detach().requires_grad_()
    torch.autograd.backward(propagate(x, matrix).sum())  # the gradient is an expanded number
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [1.5, 0.5, 0]


def test_no_edges_at_all() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    adjacency = mean_of(none, none, 3)
    x = states(3, 2).requires_grad_()
    mean = propagate(x, adjacency)
    assert mean.tolist() == [[0, 0]] * 3
    (gradient,) = torch.autograd.grad(mean.sum(), x)
    assert gradient.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(dtype: torch.dtype) -> None:
    nodes, neighbours = torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(0))
    adjacency = mean_of(nodes, neighbours, 9)
    x = states(9, 4)
    low = x.to(dtype).requires_grad_()
    mean = propagate(low, adjacency)
    (gradient,) = torch.autograd.grad(mean.sum(), low)
    assert mean.dtype == gradient.dtype == dtype
    expected = propagate(x, adjacency)
    torch.testing.assert_close(mean.double(), expected, rtol=0.0, atol=8 * torch.finfo(dtype).eps)
