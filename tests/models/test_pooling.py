"""Maxima over the states of a configuration, with and without gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hlorank.models.compression.build_plan import sparse
from hlorank.models.compression.plan import PoolIndex
from hlorank.models.plan_tensors import max_nodes, tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("own", "shared"), [(3, 2), (3, 0), (0, 2)])
def test_maxima_are_those_of_the_pooled_states(own: int, shared: int, dtype: torch.dtype) -> None:
    rows, colours = 4, 30
    rng = np.random.default_rng(own)
    members = [rng.integers(colours, size=own) for _ in range(rows)] + [rng.integers(colours, size=shared)]
    starts = np.cumsum([0, *map(len, members)])
    filled = [np.arange(rows) if own else np.full(rows, rows), np.full(rows, rows) if shared else np.arange(rows)]
    cpu = torch.device("cpu")
    states, nodes, filled_rows = (
        tensors(part, cpu)
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
