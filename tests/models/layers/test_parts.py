"""Parts of layers, against their equations."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu

from hlorank.config import ConfigError
from hlorank.models.layers.layer import L2Norm, head_width, mlp


def test_the_multilayer_perceptron_equals_its_equation() -> None:
    module, x = mlp(2, 5, 3), torch.randn(7, 2)
    parameters = dict(module.named_parameters())
    hidden = gelu(x @ parameters["0.weight"].T + parameters["0.bias"])
    expected = hidden @ parameters["2.weight"].T + parameters["2.bias"]
    torch.testing.assert_close(module(x), expected)
    assert expected.shape == (7, 3)


def test_states_get_unit_length_and_zeros_stay() -> None:
    x = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]], [[-2.0, 0.0]]], requires_grad=True)
    result = L2Norm()(x)
    torch.testing.assert_close(result, torch.tensor([[[0.6, 0.8]], [[0.0, 0.0]], [[-1.0, 0.0]]]))
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_heads_divide_the_width() -> None:
    assert head_width(12, 4) == 3
    with pytest.raises(ConfigError, match=r"model.heads=5.*model.width=12"):
        head_width(12, 5)
