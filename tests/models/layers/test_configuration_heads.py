"""Multi-head attention over configurations, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hlorank.config import ConfigError
from hlorank.models.compression.segment import Segment
from hlorank.models.layers.configuration_heads import ConfigurationHeads
from tests.models.run_layer import run_dense

MakeLayer = Callable[..., ConfigurationHeads]


def states(configurations: int) -> Tensor:
    return torch.randn(24, configurations, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_equals_multi_head_attention(heads: int, make_layer: MakeLayer, segment: Segment) -> None:
    layer, x = make_layer("configuration_heads", heads=heads), states(4)
    attention = nn.MultiheadAttention(6, heads, batch_first=True).double()
    with torch.no_grad():
        attention.in_proj_weight.copy_(layer.inputs.weight)
        attention.out_proj.weight.copy_(layer.output.weight)
        attention.out_proj.bias.copy_(layer.output.bias)
    expected, _ = attention(x, x, x)
    torch.testing.assert_close(run_dense(layer, x, segment), expected, rtol=1e-10, atol=1e-12)


def test_repetitions_change_nothing(make_layer: MakeLayer, segment: Segment) -> None:
    layer, x = make_layer("configuration_heads"), states(4)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(run_dense(layer, x.repeat(1, 5, 1), segment), result.repeat(1, 5, 1))


def test_heads_must_divide_the_width(make_layer: MakeLayer) -> None:
    with pytest.raises(ConfigError, match=r"model.heads=4: .*model.width=6"):
        make_layer("configuration_heads", heads=4)
