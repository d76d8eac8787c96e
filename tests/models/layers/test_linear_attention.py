"""Linear attention, against attention that compares every two nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hlorank.config import ConfigError
from hlorank.models.compression.segment import Segment
from hlorank.models.layers.attention import LinearAttention
from tests.models.run_layer import run_dense

MakeLayer = Callable[..., LinearAttention]


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_equals_the_equation(heads: int, make_layer: MakeLayer, segment: Segment) -> None:
    layer = make_layer("linear_attention", heads=heads)
    x = 3 * torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    query, key, value = layer.inputs.weight.chunk(3)
    result, size = run_dense(layer, x, segment), 6 // heads
    for c in range(3):
        found = []
        for head in range(heads):
            q, k, v = (x[:, c] @ part[head * size : (head + 1) * size].T for part in (query, key, value))
            q, k = (torch.where(part > 0, part + 1, part.exp()) for part in (q, k))
            similarity = q @ k.T
            found.append(similarity / similarity.sum(1, keepdim=True) @ v)
        torch.testing.assert_close(result[:, c], layer.output(torch.cat(found, dim=1)), rtol=1e-10, atol=1e-12)


def test_features_that_round_to_zero_give_numbers(make_layer: MakeLayer, segment: Segment) -> None:
    layer = make_layer("linear_attention").float()
    with torch.no_grad():
        layer.inputs.weight.fill_(-100.0)
    x = torch.ones(24, 3, 6, requires_grad=True)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(result, layer.output.bias.expand_as(result))
    torch.autograd.backward(result.sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_heads_must_divide_the_width(make_layer: MakeLayer) -> None:
    with pytest.raises(ConfigError, match=r"model.heads=4: .*model.width=6"):
        make_layer("linear_attention", heads=4)
