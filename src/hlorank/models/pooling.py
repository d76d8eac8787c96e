"""Sums and maxima of node states over the nodes of a segment, for each configuration."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hlorank.models.compression.plan import PoolIndex
from hlorank.models.propagation import propagate


def _dense(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    return values.view(index.nodes, index.configurations, values.shape[1])


def sum_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the pooled nodes, (configurations, width)."""
    if index.states is None:
        return _dense(values, index).sum(dim=0)
    sums = propagate(values, index.states)
    return sums[:-1] + sums[-1]


def sum_configurable_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the configurable nodes among them, (configurations, width)."""
    if index.configurable is None:
        return _dense(values, index)[: index.configurable_nodes].sum(dim=0)
    return propagate(values, index.configurable)


def max_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the maximum over the pooled nodes, (configurations, width)."""
    if index.states is None:
        return _dense(values, index).amax(dim=0)
    best: Tensor = embedding_bag(index.states.column, values, index.states.row_starts, mode="max")
    if index.varied == 0:
        return best[-1].expand(index.configurations, -1)
    if index.varied == index.nodes:
        return best[:-1]
    return torch.maximum(best[:-1], best[-1])
