"""Sums and maxima of node states over the nodes of segments, for each configuration."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor

from hlorank.models.compression.plan import PoolIndex, Sparse
from hlorank.models.propagation import propagate

with warnings.catch_warnings():  # PyTorch warns of each kind of sparse tensor at the first one
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


def _dense(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    return values.view(-1, index.configurations, values.shape[1])


def sum_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the pooled nodes, (rows, width)."""
    if index.states is None:
        return _dense(values, index).sum(dim=0)
    sums = propagate(values, index.states)
    rows = len(index.nodes)
    return (sums[:rows].view(-1, index.configurations, sums.shape[1]) + sums[rows:, None]).flatten(0, 1)


def sum_configurable_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the configurable nodes among them, (rows, width)."""
    if index.states is None:
        return _dense(values, index)[: index.configurable_nodes].sum(dim=0)
    return propagate(values, cast("Sparse[Tensor]", index.configurable))


class _Max(torch.autograd.Function):
    """The maximum over each row by `embedding_bag`, whose own gradient takes a call for each channel."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, matrix: Sparse[Tensor]) -> Tensor:
        best, _, _, place = torch._embedding_bag(values.detach(), matrix.column, matrix.row_starts, mode=2)
        ctx.place, ctx.states = place.long().clamp(min=0), len(values)  # -1 in empty rows
        return best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient.new_zeros(ctx.states, gradient.shape[1]).scatter_add_(0, ctx.place, gradient), None


def _max(values: Tensor, matrix: Sparse[Tensor]) -> Tensor:
    """Return the maximum over each row, 0 in empty ones."""
    best: Tensor
    if torch.is_grad_enabled() or not values.is_cpu:  # the product below has no places of maxima, and runs on CPUs
        best = _Max.apply(values, matrix)  # type: ignore[no-untyped-call] # untyped in PyTorch
        return best
    row_starts = torch.cat([matrix.row_starts, matrix.row_starts.new_tensor([len(matrix.column)])])
    shape = len(matrix.row_starts), len(values)
    entries = matrix.column, values.new_ones(len(matrix.column))
    ones = torch.sparse_csr_tensor(row_starts, *entries, shape, check_invariants=False)
    best = torch.sparse.mm(ones, values, "amax")  # four to seven times as fast as `embedding_bag`
    return best


def max_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the maximum over the pooled nodes, (rows, width)."""
    if index.states is None:
        return _dense(values, index).amax(dim=0)
    best = _max(values, index.states)
    own, of_segment = cast("Tensor", index.filled)
    return torch.maximum(best[own], best[of_segment])
