"""The multilayer perceptron, against its equation."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu

from hlorank.models.layers.mlp import mlp


def test_equals_the_equation() -> None:
    module, x = mlp(2, 5, 3), torch.randn(7, 2)
    parameters = dict(module.named_parameters())
    hidden = gelu(x @ parameters["0.weight"].T + parameters["0.bias"])
    expected = hidden @ parameters["2.weight"].T + parameters["2.bias"]
    torch.testing.assert_close(module(x), expected)
    assert expected.shape == (7, 3)
