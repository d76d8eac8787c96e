"""Every layer mixes as far as it declares, keeps the order of nodes and configurations, and has two equal forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from hlorank.config import ConfigError, Directions
from hlorank.models.compression.declarations import Mixing
from hlorank.models.compression.segment import Edges, Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.registry import LAYERS
from tests.models.run_layer import both_forms, run_dense

WIDTH, CONFIGURATIONS = 64, 3

MakeLayer = Callable[..., Layer]
MakeInputs = Callable[..., GraphInputs]
WITHOUT_EDGES = (
    *("channel_attention", "linear_attention", "squeeze_excite", "configuration_attention", "configuration_gate"),
    *("configuration_heads", "instance_norm", "dropout", "layer_norm", "l2_norm"),
    *("mlp", "linear", "gelu", "relu", "leaky_relu"),
)
"""Layers for which one of the directions is enough."""
DIRECTIONS = get_args(Directions)
every_layer = pytest.mark.parametrize("name", sorted(LAYERS))
every_direction = pytest.mark.parametrize("directions", DIRECTIONS)
every_layer_and_direction = pytest.mark.parametrize(
    ("name", "directions"),
    [(name, one) for name in sorted(LAYERS) for one in (DIRECTIONS[:1] if name in WITHOUT_EDGES else DIRECTIONS)],
)


@pytest.fixture
def kernel(make_inputs: MakeInputs) -> Segment:
    """A kernel of 16 nodes, all of them configurable, so that layers for configurable nodes change all."""
    (only,) = make_inputs(kind="tile", nodes=16).segments
    return only


def states(nodes: int, configurations: int = CONFIGURATIONS, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(nodes, configurations, width, dtype=torch.float64, generator=generator)


def changed_by(
    mixing: Mixing, directions: str, segment: Segment, place: int, configuration: int
) -> set[tuple[int, int]]:
    """Return the (node, configuration) pairs that a state may change in a layer of this mixing."""
    if mixing is Mixing.SEGMENT:
        return {(node, configuration) for node in range(segment.nodes)}
    if mixing is Mixing.CONFIGURATIONS:
        return {(place, other) for other in range(CONFIGURATIONS)}
    near = {place}
    if mixing is Mixing.NEIGHBOURS:
        received = segment.edges.ends[:, ::-1].tolist()  # by an operand from its user
        for target, source in received if directions == "users" else [*received, *(edge[::-1] for edge in received)]:
            near.update([target] if source == place else [])
    return {(node, configuration) for node in near}


@pytest.mark.parametrize("name", WITHOUT_EDGES)
def test_these_layers_use_no_edges(name: str, make_layer: MakeLayer) -> None:
    assert make_layer(name, width=WIDTH).edges is None


@every_layer_and_direction
def test_a_state_changes_exactly_the_states_that_the_mixing_declares(
    name: str, directions: str, make_layer: MakeLayer, kernel: Segment
) -> None:
    layer, x = make_layer(name, width=WIDTH, directions=directions), states(16)
    for place in range(16):
        changed = x.clone()
        changed[place, 1] += torch.randn(WIDTH, dtype=torch.float64)
        with torch.no_grad():
            differs = (run_dense(layer, changed, kernel) != run_dense(layer, x, kernel)).any(dim=-1)
        received = directions if layer.edges is None else layer.edges.directions
        expected = changed_by(layer.mixing, received, kernel, place, 1)
        if name == "edge_mlp" and directions == "users" and place not in kernel.edges.ends[:, 1]:
            expected.remove((place, 1))  # without a neighbour it is 0
        assert set(map(tuple, differs.nonzero().tolist())) == expected


@every_layer_and_direction
def test_the_order_of_nodes_and_configurations_is_kept(
    name: str, directions: str, make_layer: MakeLayer, kernel: Segment
) -> None:
    layer, x = make_layer(name, width=WIDTH, directions=directions), states(16)
    result = run_dense(layer, x, kernel)
    configurations = torch.tensor([2, 0, 1])
    torch.testing.assert_close(run_dense(layer, x[:, configurations], kernel), result[:, configurations])
    nodes = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    ends = nodes.argsort().numpy()[kernel.edges.ends]
    renamed = replace(kernel, edges=Edges(ends, 16, 16, None))
    torch.testing.assert_close(run_dense(layer, x[nodes], renamed), result[nodes])


@every_layer_and_direction
def test_gradients_are_right_and_reach_every_parameter(
    name: str, directions: str, make_layer: MakeLayer, make_inputs: MakeInputs
) -> None:
    (segment,) = make_inputs(kind="tile", nodes=5).segments
    layer = make_layer(name, width=WIDTH, directions=directions)
    x = states(5, 2).requires_grad_()
    # gradcheck changes the parameters in place.
    assert gradcheck(lambda *_: run_dense(layer, x, segment), (x, *layer.parameters()), fast_mode=True)
    result = run_dense(layer, x, segment)
    torch.autograd.backward((result * states(5, 2, result.shape[-1]).cos()).sum())
    for key, parameter in layer.named_parameters():
        message = f"{key} has no influence on the output: remove it from the layer"
        assert parameter.grad is not None, message
        assert parameter.grad.abs().max() > 1e-9, message


@every_layer
def test_heads_that_do_not_divide_the_width_are_refused_or_unused(
    name: str, make_layer: MakeLayer, kernel: Segment
) -> None:
    x = states(16, width=6)
    try:
        layer = make_layer(name, width=6, heads=4)
    except ConfigError as error:
        assert "model.heads=4" in str(error)  # noqa: PT017 (layers without heads raise nothing)
    else:
        assert run_dense(layer, x, kernel).shape[:2] == x.shape[:2]


@pytest.mark.parametrize(
    ("rows", "segments", "nodes"),
    [
        pytest.param([3], 3, 60, id="one configuration"),
        pytest.param([3, 0, 7, 5], 3, 60, id="four configurations"),
        pytest.param([3, 0, 7, 5], 12, 24, id="few edges"),
        pytest.param([3, 0, 7, 5], 24, 24, id="one node each"),
    ],
)
@every_layer_and_direction
def test_the_compressed_form_equals_the_dense_form(
    name: str,
    directions: str,
    rows: list[int],
    segments: int,
    nodes: int,
    make_model: Callable[..., CostModel],
    make_inputs: MakeInputs,
) -> None:
    model = make_model(
        stem=[name], block=["linear", name, "gelu"], blocks=2, pooling=["sum", "max"], directions=directions
    )
    compressed, dense = both_forms(model, make_inputs(segments=segments, nodes=nodes), np.array(rows))
    torch.testing.assert_close(compressed, dense, rtol=1e-9, atol=1e-10)


def test_some_segments_of_one_node_are_configurable(make_inputs: MakeInputs) -> None:
    few = [make_inputs(segments=count, nodes=24).segments for count in (12, 24)]
    assert {segment.configurable for segment in few[1]} == {0, 1}
    assert {len(segment.edges) for segment in few[1]} == {0} < {len(segment.edges) for segment in few[0]}


@pytest.mark.parametrize("name", ["sage", "gcn", "graph_conv", "GINConv", "gatv2", "edge_mlp"])
@every_direction
def test_no_node_depends_on_configurations_before_they_join(
    name: str, directions: str, make_model: Callable[..., CostModel], make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=[name], join="late", directions=directions), make_inputs()
    rows = [graph.plan({0: np.array(chosen)}, model.recipe).rows for chosen in ([3], [3, 0, 7])]
    assert rows[0] == rows[1] > 0
