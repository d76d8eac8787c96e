"""Attention over configurations, against its equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hlorank.models.inputs import GraphInputs, Segment
from hlorank.models.layers.configuration_attention import ConfigurationAttention

WIDTH = 6


@pytest.fixture
def segment(make_inputs: Callable[..., GraphInputs]) -> Segment:
    (only,) = make_inputs().segments
    return only


@pytest.fixture
def layer() -> ConfigurationAttention:
    torch.manual_seed(0)
    return ConfigurationAttention(WIDTH).double()


def states(configurations: int) -> Tensor:
    return torch.randn(24, configurations, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_equals_the_equation(layer: ConfigurationAttention, segment: Segment) -> None:
    x = states(4)
    z = layer.norm(x)
    temperature = 0.5
    assert layer.log_temperature.exp().item() == pytest.approx(temperature)
    weight = torch.exp(z / temperature)
    attention = 4 * weight / weight.sum(1, keepdim=True)
    first, second = layer.joined.weight[:, :WIDTH], layer.joined.weight[:, WIDTH:]
    expected = x + z @ first.T + (attention * z) @ second.T + layer.joined.bias
    torch.testing.assert_close(layer(x, segment), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(attention.mean(1), torch.ones(24, WIDTH, dtype=torch.float64))


def test_configurations_are_equivariant_and_repetitions_change_nothing(
    layer: ConfigurationAttention, segment: Segment
) -> None:
    x = states(4)
    result = layer(x, segment)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(layer(x[:, order], segment), result[:, order])
    # The weights average 1 however many configurations there are.
    torch.testing.assert_close(layer(x.repeat(1, 5, 1), segment), result.repeat(1, 5, 1))
    torch.testing.assert_close(layer(x[:, :1].expand(-1, 7, -1), segment)[:, 0], layer(x[:, :1], segment)[:, 0])


def test_the_temperature_is_learned(layer: ConfigurationAttention, segment: Segment) -> None:
    layer(states(4), segment).square().sum().backward()
    assert layer.log_temperature.grad is not None
    assert layer.log_temperature.grad.abs() > 0
