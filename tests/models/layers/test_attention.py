"""What holds for attention besides its equations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.attention import ConfigurationAttention, LinearAttention
from tests.models.run_layer import run_dense


def test_features_that_round_to_zero_give_numbers(make_layer: Callable[..., LinearAttention], segment: Segment) -> None:
    layer = make_layer("linear_attention").float()
    with torch.no_grad():
        layer.inputs.weight.fill_(-100.0)
    x = torch.ones(24, 3, 6, requires_grad=True)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(result, layer.output.bias.expand_as(result))
    torch.autograd.backward(result.sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_repeated_configurations_change_nothing(
    make_layer: Callable[..., ConfigurationAttention], segment: Segment
) -> None:
    """The weights average 1 however many configurations there are, at the first temperature of 0.5."""
    layer, x = make_layer("configuration_attention"), torch.randn(24, 4, 6, dtype=torch.float64)
    assert layer.log_temperature.exp().item() == pytest.approx(0.5)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(run_dense(layer, x.repeat(1, 5, 1), segment), result.repeat(1, 5, 1))
    alone, seven = x[:, :1], x[:, :1].repeat(1, 7, 1)
    torch.testing.assert_close(run_dense(layer, seven, segment)[:, :1], run_dense(layer, alone, segment))
