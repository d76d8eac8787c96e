"""Channel attention, against its equation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.layer import RowLayer
from tests.models.run_layer import run_dense


def test_equals_the_equation(make_layer: Callable[..., RowLayer], segment: Segment) -> None:
    layer, x = make_layer("channel_attention", width=24), torch.randn(24, 3, 24, dtype=torch.float64)
    first, second = (layer.get_submodule(f"module.gate.{place}") for place in (0, 2))
    assert first.get_parameter("weight").shape == (3, 24)  # an eighth of the channels
    for state, result in zip(x.flatten(0, 1), run_dense(layer, x, segment).flatten(0, 1), strict=True):
        gate = 1 / (1 + torch.exp(-second(first(state).clamp(min=0))))
        torch.testing.assert_close(result, state * gate, rtol=1e-12, atol=1e-12)
