"""Attention over configurations, against its equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.attention import ConfigurationAttention, ConfigurationGate
from tests.models.run_layer import run_dense

WIDTH = 6


@pytest.fixture
def layer(make_layer: Callable[..., ConfigurationAttention]) -> ConfigurationAttention:
    return make_layer("configuration_attention", width=WIDTH)


def states(configurations: int) -> Tensor:
    return torch.randn(24, configurations, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_equals_the_equation(layer: ConfigurationAttention, segment: Segment) -> None:
    x = states(4)
    temperature = 0.5
    assert layer.log_temperature.exp().item() == pytest.approx(temperature)
    weight = torch.exp(x / temperature)
    attention = 4 * weight / weight.sum(1, keepdim=True)
    first, second = layer.joined.weight[:, :WIDTH], layer.joined.weight[:, WIDTH:]
    expected = x @ first.T + (attention * x) @ second.T + layer.joined.bias
    torch.testing.assert_close(run_dense(layer, x, segment), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(attention.mean(1), torch.ones(24, WIDTH, dtype=torch.float64))


def test_repetitions_change_nothing(layer: ConfigurationAttention, segment: Segment) -> None:
    x = states(4)
    # The weights average 1 however many configurations there are.
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(run_dense(layer, x.repeat(1, 5, 1), segment), result.repeat(1, 5, 1))
    alone, seven = x[:, :1], x[:, :1].repeat(1, 7, 1)
    torch.testing.assert_close(run_dense(layer, seven, segment)[:, :1], run_dense(layer, alone, segment))


def test_the_temperature_is_learned(layer: ConfigurationAttention, segment: Segment) -> None:
    torch.autograd.backward(run_dense(layer, states(4), segment).square().sum())
    assert layer.log_temperature.grad is not None
    assert layer.log_temperature.grad.abs() > 0


def test_the_gate_equals_its_equation(make_layer: Callable[..., ConfigurationGate], segment: Segment) -> None:
    x, layer = states(4), make_layer("configuration_gate")
    weight = torch.exp(x / 0.5)
    expected = torch.cat([x, 4 * weight / weight.sum(1, keepdim=True) * x], dim=-1)
    torch.testing.assert_close(run_dense(layer, x, segment), expected, rtol=1e-6, atol=1e-7)
