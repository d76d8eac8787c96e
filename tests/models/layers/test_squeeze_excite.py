"""Squeeze-and-excitation, against its equations."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.squeeze_excite import SqueezeExcite
from tests.models.run_layer import run_dense


def test_equals_the_equations(make_layer: Callable[..., SqueezeExcite], segment: Segment) -> None:
    layer, x = make_layer("squeeze_excite", width=48), torch.randn(24, 3, 48, dtype=torch.float64)
    parameters = dict(layer.gate.named_parameters())
    assert parameters["0.weight"].shape == (3, 48)  # a sixteenth of the channels
    result = run_dense(layer, x, segment)
    for c in range(3):
        squeezed = x[:, c].sum(0) / 24
        hidden = (parameters["0.weight"] @ squeezed + parameters["0.bias"]).clamp(min=0)
        gate = 1 / (1 + torch.exp(-(parameters["2.weight"] @ hidden + parameters["2.bias"])))
        torch.testing.assert_close(result[:, c], x[:, c] * gate, rtol=1e-12, atol=1e-12)
