"""Dropout that configurations share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hlorank.models.inputs import GraphInputs, Segment
from hlorank.models.layers.dropout import Dropout
from hlorank.models.node_states import NodeStates


def test_one_mask_serves_all_configurations(make_layer: Callable[..., Dropout], segment: Segment) -> None:
    layer, x = make_layer("dropout", dropout=0.5), torch.randn(24, 3, 16, dtype=torch.float64)
    mask = layer(x, segment) / x
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
    assert torch.equal(layer.eval()(x, segment), x)


def test_the_compressed_form_equals_the_dense_form(
    make_layer: Callable[..., Dropout], make_inputs: Callable[..., GraphInputs], make_states: Callable[..., NodeStates]
) -> None:
    layer = make_layer("dropout", dropout=0.5)
    for segment in make_inputs(segments=3, nodes=60).segments:
        state = make_states(segment, 4, 6, share=False)
        torch.manual_seed(1)
        compressed = layer.forward_compressed(state, segment).dense()
        torch.manual_seed(1)
        dense = layer(state.dense(), segment)
        torch.testing.assert_close(compressed, dense)
        assert (dense == 0).any()
        assert torch.equal(layer.eval().forward_compressed(state, segment).values, state.values)
        layer.train()
