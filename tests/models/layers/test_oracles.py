"""The one test of all layers: shape, permutation, compressed = dense = PyTorch Geometric, mixing and gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from hlorank.config import ConfigError, Directions
from hlorank.models.compression.declarations import Mixing
from hlorank.models.compression.segment import Edges, Segment
from hlorank.models.layers.layer import Layer
from tests.graphs import make_inputs, make_model
from tests.models.dense_form import ALL_LAYERS, EDGE_MLP, GATE, both_forms, make_layer, run_dense
from tests.models.oracles import OPERATORS, ORACLES, graph_of, operator

MakeLayer = Callable[..., Layer]
WITH_EDGES = {"sage", "graph_conv", "gcn", "gatv2", "gps"}
DIRECTIONS = get_args(Directions)


def cases(*names: str) -> list[tuple[str, str]]:
    """Return layers with each of the directions that they read."""
    with_edges = {*WITH_EDGES, EDGE_MLP, *OPERATORS}
    return [(name, one) for name in names for one in (DIRECTIONS if name in with_edges else DIRECTIONS[:1])]


def options(name: str, directions: str) -> dict[str, Any]:
    own = {name: {"directions": directions}} if name == EDGE_MLP else OPERATORS
    return {"directions": directions, "operators": own}


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "directions"), cases(*ALL_LAYERS, *OPERATORS))
def test_every_layer_equals_its_oracle_in_any_order_and_form(name: str, directions: str, segment: Segment) -> None:
    layer, x = make_layer(name, **options(name, directions)), states(24, 3, 6)
    for parameter in layer.parameters() if name in ("instance_norm", "gatv2", "gps") else ():
        nn.init.normal_(parameter, std=0.5)  # scales are 1 and offsets 0 at first
    graph = graph_of(segment, directions)
    expected = operator(name, layer, x, graph) if name in OPERATORS else ORACLES[name](layer, x, graph)
    exact = name not in (GATE, "configuration_attention")  # 0.5 is stored in float32
    result = run_dense(layer, x, segment)
    assert result.shape == (24, 3, layer.widens * 6)
    torch.testing.assert_close(result, expected, rtol=1e-9 if exact else 1e-6, atol=1e-9 if exact else 1e-6)

    free = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    nodes, configurations = torch.cat([free[free < 6], free[free >= 6]]), torch.tensor([2, 0, 1])  # 6 are configurable
    moved = replace(segment, edges=Edges(nodes.argsort().numpy()[segment.edges.ends], 24, 6))
    in_other_order = run_dense(layer, x[nodes][:, configurations], moved)
    torch.testing.assert_close(in_other_order, result[nodes][:, configurations])
    torch.testing.assert_close(run_dense(layer.float(), x.float(), segment).double(), expected, rtol=1e-4, atol=1e-4)

    model = make_model(
        stem=[] if name in OPERATORS else [name],
        block=["linear", name, "gelu"],
        pooling=["sum", "max"],
        join="late" if name in OPERATORS and directions == "shared" else "early",
        **options(name, directions),
    )
    no_edges = {"segments": 8, "nodes": 8, "distinct": 4}
    for rows, graphs in (
        ([3, 0, 7, 5], {"segments": 2, "nodes": 40}),
        ([3], {"segments": 3, "nodes": 60}),
        ([3, 0, 2, 0], no_edges),
    ):
        if graphs is not no_edges or name not in OPERATORS:
            forms = both_forms(model, make_inputs(**graphs), np.array(rows))
            torch.testing.assert_close(*forms, rtol=1e-9, atol=1e-9)


def changed_by(mixing: Mixing, directions: str, segment: Segment, place: int) -> set[tuple[int, int]]:
    """Return the (node, configuration) pairs that the state of a node under configuration 1 of 3 may change."""
    if mixing is Mixing.SEGMENT:
        return {(node, 1) for node in range(segment.nodes)}
    if mixing is Mixing.CONFIGURATIONS:
        return {(place, configuration) for configuration in range(3)}
    near = {place}
    if mixing is Mixing.NEIGHBOURS:
        received = segment.edges.ends[:, ::-1].tolist()  # by an operand from its user
        for target, source in received if directions == "users" else [*received, *(edge[::-1] for edge in received)]:
            near.update([target] if source == place else [])
    return {(node, 1) for node in near}


@pytest.mark.parametrize(("name", "directions"), cases(*ALL_LAYERS))
def test_every_layer_mixes_as_it_declares_and_has_right_gradients(name: str, directions: str) -> None:
    """In a kernel all nodes are configurable, so that layers for configurable nodes change all."""
    (kernel,) = make_inputs(kind="tile", nodes=6).segments
    layer, x = make_layer(name, width=64, **options(name, directions)), states(6, 3, 64)
    assert (layer.edges is not None) == (name in {*WITH_EDGES, EDGE_MLP})
    with torch.no_grad():
        before = run_dense(layer, x, kernel)
        for place in range(6):
            changed = x.clone()
            changed[place, 1] += torch.randn(64, dtype=torch.float64)
            differs = (run_dense(layer, changed, kernel) != before).any(dim=-1)
            received = directions if layer.edges is None else layer.edges.directions
            expected = changed_by(layer.mixing, received, kernel, place)
            if name == EDGE_MLP and directions == "users" and place not in kernel.edges.ends[:, 1]:
                expected.remove((place, 1))  # without a neighbour it is 0
            assert set(map(tuple, differs.nonzero().tolist())) == expected
    x = x[:, :2].clone().requires_grad_()
    # gradcheck changes the parameters in place.
    assert gradcheck(lambda *_: run_dense(layer, x, kernel), (x, *layer.parameters()), fast_mode=True)
    result = run_dense(layer, x, kernel)
    torch.autograd.backward((result * states(*result.shape).cos()).sum())
    for key, parameter in layer.named_parameters():
        message = f"{key} has no influence on the output: remove it from the layer"
        assert parameter.grad is not None, message
        assert parameter.grad.abs().max() > 1e-9, message


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("sagee", {}, r"model.block=sagee: .*sage"),
        ("MessagePassin", {}, r"model\.block=MessagePassin"),
        ("reproductions:EdgeMLP", {}, r"model\.block=reproductions:EdgeMLP"),
        *((name, {"heads": 4}, r"model.heads=4: .*model.width=6") for name in ("gatv2", "gps", "linear_attention")),
        *(
            (name, {"operators": {name: arguments}}, match)
            for name, arguments, match in [
                ("GCNConv", {}, r"model\.block=GCNConv: "),
                ("TransformerConv", {"head": 2}, r"model\.operators\.TransformerConv: .*head"),
                ("TransformerConv", {"heads": 4}, r"model\.operators\.TransformerConv: .*heads=4"),
                ("SAGEConv", {"edge_weight": "mean"}, r"model\.operators\.SAGEConv: .*edge_weight"),
                ("LEConv", {"edge_weight": "max"}, r"model\.operators\.LEConv: edge_weight: .*max"),
                ("GENConv", {}, r"model\.block=GENConv: "),
                ("GATv2Conv", {"dropout": 0.5}, r"model\.operators\.GATv2Conv: .*chance"),
                ("SAGEConv", {"aggr": "lstm"}, r"SAGEConv"),
                ("NNConv", {}, r"model\.block=NNConv: "),
                (EDGE_MLP, {"heads": 2}, r"model\.operators\.reproductions:EdgeMlp: .*heads"),
            ]
        ),
    ],
)
def test_what_cannot_run_is_refused(name: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_layer(name, **changes)
