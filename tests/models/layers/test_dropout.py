"""Dropout that configurations share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hlorank.models.compression.colouring import NodeStates
from hlorank.models.inputs import GraphInputs, Segment
from hlorank.models.layers.dropout import Dropout


def test_one_mask_serves_all_configurations(make_layer: Callable[..., Dropout], segment: Segment) -> None:
    layer, x = make_layer("dropout", dropout=0.5), torch.randn(24, 3, 16, dtype=torch.float64)
    mask = layer(x, segment) / x
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
    assert torch.equal(layer.eval()(x, segment), x)


def test_spreading_equals_the_plain_form(
    make_layer: Callable[..., Dropout], make_inputs: Callable[..., GraphInputs], first_state: Callable[..., NodeStates]
) -> None:
    layer = make_layer("dropout", dropout=0.5)
    for segment in make_inputs(segments=3, nodes=60).segments:
        state = first_state(segment, 4, 6, apart=True)
        torch.manual_seed(1)
        spread = layer.spread(state, segment).dense()
        torch.manual_seed(1)
        plain = layer(state.dense(), segment)
        torch.testing.assert_close(spread, plain)
        assert (plain == 0).any()
        assert torch.equal(layer.eval().spread(state, segment).values, state.values)
        layer.train()
