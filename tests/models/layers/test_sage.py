"""The GraphSAGE layer, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import gelu
from torch_geometric.nn import SAGEConv

from hlorank.models.inputs import GraphInputs
from hlorank.models.layers.sage import SageLayer
from hlorank.models.state import State


def test_equals_two_sage_convolutions(make_inputs: Callable[..., GraphInputs]) -> None:
    graph, width = make_inputs(), 5
    (segment,) = graph.segments
    torch.manual_seed(0)
    layer = SageLayer(width, dropout=0.0).double()
    over_operands = SAGEConv(width, width, aggr="mean").double()
    over_users = SAGEConv(width, width, aggr="mean", root_weight=False, bias=False).double()
    with torch.no_grad():
        over_operands.lin_l.weight.copy_(layer.operands.weight)
        over_operands.lin_l.bias.copy_(layer.own.bias)
        over_operands.lin_r.weight.copy_(layer.own.weight)
        over_users.lin_l.weight.copy_(layer.users.weight)
    consumer, producer = torch.from_numpy(graph.features.edge_index).T
    x = torch.randn(24, 3, width, dtype=torch.float64)
    result = torch.empty_like(x)
    result[segment.node_ids] = layer(x[segment.node_ids], segment)
    for c in range(3):
        z = layer.norm(x[:, c])
        messages = over_operands(z, torch.stack([producer, consumer])) + over_users(
            z, torch.stack([consumer, producer])
        )
        torch.testing.assert_close(result[:, c], x[:, c] + gelu(messages), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_spreading_equals_the_plain_form(
    dropout: float, make_inputs: Callable[..., GraphInputs], first_state: Callable[..., State]
) -> None:
    for segment in make_inputs(segments=3, nodes=60).segments:
        torch.manual_seed(0)
        layer = SageLayer(5, dropout).double()
        state = first_state(segment, 4, 5, apart=dropout > 0)
        x = state.dense()
        for k in range(3):
            torch.manual_seed(k)
            state = layer.spread(state, segment)
            torch.manual_seed(k)
            x = layer(x, segment)
            assert (state.hops, state.rows.reached) == (k + 1, segment.reached(k + 1))
            torch.testing.assert_close(state.dense(), x, rtol=1e-11, atol=1e-13)
        with torch.no_grad():
            alike = (x - x[:, :1]).abs().amax(dim=(1, 2)) < 1e-12
        assert not alike[: segment.reached(3)].all()
        assert alike[segment.reached(3) :].all(), "what no configurable node reaches is the same in the plain form"


def test_one_dropout_mask_serves_all_configurations(make_inputs: Callable[..., GraphInputs]) -> None:
    (segment,) = make_inputs().segments
    torch.manual_seed(0)
    layer = SageLayer(8, dropout=0.5).double()
    x = torch.randn(24, 3, 8, dtype=torch.float64)
    kept = layer(x, segment) - x
    plain = layer.eval()(x, segment) - x
    mask = kept / plain
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
