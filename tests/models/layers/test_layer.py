"""Every layer mixes as far as it declares, keeps the order of nodes and configurations, and has right gradients."""

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
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Mixing, Norm
from hlorank.models.compression.segment import Edges, Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.attention import ConfigurationAttention, LinearAttention
from hlorank.models.layers.layer import Dropout, InstanceNorm, Layer
from hlorank.models.layers.message_passing import EdgeWise
from tests.models.dense_form import ALL_LAYERS, ROWS, colouring_of, embed_rows, run_dense

WIDTH, CONFIGURATIONS = 64, 3

MakeLayer = Callable[..., Layer]
MakeInputs = Callable[..., GraphInputs]
WITH_EDGES = ("sage", "graph_conv", "gcn", "gatv2", "gps", "reproductions:EdgeMlp")
DIRECTIONS = get_args(Directions)
every_layer_and_direction = pytest.mark.parametrize(
    ("name", "directions"),
    [(name, one) for name in ALL_LAYERS for one in (DIRECTIONS if name in WITH_EDGES else DIRECTIONS[:1])],
)


@pytest.fixture
def kernel(make_inputs: MakeInputs) -> Segment:
    """A kernel of 16 nodes, all of them configurable, so that layers for configurable nodes change all."""
    (only,) = make_inputs(kind="tile", nodes=16).segments
    return only


@pytest.fixture
def make(make_layer: MakeLayer) -> Callable[[str, str], Layer]:
    def made(name: str, directions: str) -> Layer:
        operators = {name: {"directions": directions}} if name.endswith("EdgeMlp") else {}
        return make_layer(name, width=WIDTH, directions=directions, operators=operators)

    return made


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


@every_layer_and_direction
def test_a_state_changes_exactly_the_states_that_the_mixing_declares(
    name: str, directions: str, make: Callable[[str, str], Layer], kernel: Segment
) -> None:
    layer, x = make(name, directions), states(16)
    assert (layer.edges is not None) == (name in WITH_EDGES)
    with torch.no_grad():
        before = run_dense(layer, x, kernel)
        for place in range(16):
            changed = x.clone()
            changed[place, 1] += torch.randn(WIDTH, dtype=torch.float64)
            differs = (run_dense(layer, changed, kernel) != before).any(dim=-1)
            received = directions if layer.edges is None else layer.edges.directions
            expected = changed_by(layer.mixing, received, kernel, place, 1)
            if name.endswith("EdgeMlp") and directions == "users" and place not in kernel.edges.ends[:, 1]:
                expected.remove((place, 1))  # without a neighbour it is 0
            assert set(map(tuple, differs.nonzero().tolist())) == expected


@every_layer_and_direction
def test_the_order_of_nodes_and_configurations_is_kept(
    name: str, directions: str, make: Callable[[str, str], Layer], kernel: Segment
) -> None:
    layer, x = make(name, directions), states(16)
    result = run_dense(layer, x, kernel)
    configurations = torch.tensor([2, 0, 1])
    torch.testing.assert_close(run_dense(layer, x[:, configurations], kernel), result[:, configurations])
    nodes = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    ends = nodes.argsort().numpy()[kernel.edges.ends]
    renamed = replace(kernel, edges=Edges(ends, 16, 16, None))
    torch.testing.assert_close(run_dense(layer, x[nodes], renamed), result[nodes])


@every_layer_and_direction
def test_gradients_are_right_and_reach_every_parameter(
    name: str, directions: str, make: Callable[[str, str], Layer], make_inputs: MakeInputs
) -> None:
    (segment,) = make_inputs(kind="tile", nodes=5).segments
    layer, x = make(name, directions), states(5, 2).requires_grad_()
    # gradcheck changes the parameters in place.
    assert gradcheck(lambda *_: run_dense(layer, x, segment), (x, *layer.parameters()), fast_mode=True)
    result = run_dense(layer, x, segment)
    torch.autograd.backward((result * states(5, 2, result.shape[-1]).cos()).sum())
    for key, parameter in layer.named_parameters():
        message = f"{key} has no influence on the output: remove it from the layer"
        assert parameter.grad is not None, message
        assert parameter.grad.abs().max() > 1e-9, message


@pytest.mark.parametrize("name", ["gatv2", "gps", "linear_attention"])
def test_heads_divide_the_width(name: str, make_layer: MakeLayer) -> None:
    with pytest.raises(ConfigError, match=r"model.heads=4: .*model.width=6"):
        make_layer(name, width=6, heads=4)


@pytest.mark.parametrize("name", ["sage", "gcn", "GINConv", "gatv2", "reproductions:EdgeMlp"])
def test_no_node_depends_on_configurations_before_they_join(
    name: str, make_model: Callable[..., CostModel], make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=[name], join="late"), make_inputs()
    rows = [graph.plan({0: np.array(chosen)}, model.recipe).states for chosen in ([3], [3, 0, 7])]
    assert rows[0] == rows[1] > 0


def test_equal_nodes_become_0_by_instance_norm(segment: Segment) -> None:
    x = 3 + 5 * torch.randn(24, 3, 6, dtype=torch.float64)
    for equal in (x[:1], x[:1].expand(24, -1, -1)):
        torch.testing.assert_close(run_dense(InstanceNorm(6), equal, segment), torch.zeros_like(equal))


def test_one_mask_of_dropout_serves_all_configurations(segment: Segment) -> None:
    layer, x = Dropout(0.5), torch.randn(24, 3, 16, dtype=torch.float64)
    mask = run_dense(layer, x, segment) / x
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
    assert torch.equal(run_dense(layer.eval(), x, segment), x)


def test_both_forms_have_the_same_masks_of_dropout(
    make_model: Callable[..., CostModel], make_inputs: MakeInputs
) -> None:
    model = make_model(block=["sage", "dropout", "residual"], dropout=0.5)
    model.recipe = replace(model.recipe, share=False)
    graph, results = make_inputs(segments=3, nodes=60), []
    for recipe in (model.recipe, replace(model.recipe, compress=False, deduplicate=False)):
        model.recipe = recipe
        torch.manual_seed(1)
        results.append(torch.cat([embed_rows(model, graph, j, ROWS) for j in range(3)]))
    torch.testing.assert_close(*results)
    assert (results[0] - torch.cat([embed_rows(model, graph, j, ROWS) for j in range(3)])).abs().max() > 0.01


class Recorded(EdgeWise):
    """A layer that sums over neighbours, and records the number of edges that are in memory at once."""

    def __init__(self) -> None:
        super().__init__(4, EdgeKind(Norm.SUM, "separate", form=EdgeForm.PIECES))
        self.pieces: list[tuple[int, int]] = []

    def combine(self, target: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        self.pieces.append((len(target), rows))
        assert len(target) == len(source) == len(row)
        assert row.numel() == 0 or (row.min() == 0 and row.max() == rows - 1 and (row.diff() >= 0).all())
        return source.new_zeros(rows, 4).index_add(0, row, target + source)


@pytest.mark.parametrize("segments", [1, 5, 40])
def test_edges_are_computed_in_pieces_and_again_for_gradients(
    segments: int, make_inputs: Callable[..., GraphInputs]
) -> None:
    (segment, *_) = make_inputs(nodes=40, segments=segments).segments
    layer, x = Recorded().double(), torch.randn(segment.nodes, 2, 4, dtype=torch.float64)
    result = run_dense(layer, x, segment)
    pieces = list(layer.pieces)
    entries = 2 * (segment.nodes + 2 * len(segment.edges))
    assert [sum(column) for column in zip(*pieces, strict=True)] == [entries, 2 * segment.nodes]
    assert len(pieces) == entries // (2 * segment.nodes)
    torch.autograd.backward(result.sum())
    assert sorted(layer.pieces) == sorted(2 * pieces)


def test_nodes_without_edges_to_them_get_no_more_colours(make_layer: Callable[..., Layer], segment: Segment) -> None:
    """Nodes that are not configurable keep their colours, which a residual connection needs."""
    before, free = colouring_of(segment, 5, share=True), segment.configurable
    edges = make_layer("reproductions:EdgeMlp").edges
    assert edges is not None
    after = before.refine(segment.edges.neighbourhood(edges), segment.k_hop_prefix(1))
    assert len(set(after.colour_of[free:].flat)) == len(set(before.colour_of[free:].flat))
    assert (after.colour_of[free:] == after.colour_of[free:, :1]).all()


def test_features_that_round_to_zero_give_numbers(make_layer: Callable[..., LinearAttention], segment: Segment) -> None:
    layer = make_layer("linear_attention").float()
    with torch.no_grad():
        layer.inputs.weight.fill_(-100.0)
    x = torch.ones(24, 3, 6, requires_grad=True)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(result, layer.output.bias.expand_as(result))
    torch.autograd.backward(result.sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_repeated_configurations_change_nothing(
    make_layer: Callable[..., ConfigurationAttention], segment: Segment
) -> None:
    """The weights average 1 however many configurations there are, at the first temperature of 0.5."""
    layer, x = make_layer("configuration_attention"), torch.randn(24, 4, 6, dtype=torch.float64)
    assert layer.log_temperature.exp().item() == pytest.approx(0.5)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(run_dense(layer, x.repeat(1, 5, 1), segment), result.repeat(1, 5, 1))
    alone, seven = x[:, :1], x[:, :1].repeat(1, 7, 1)
    torch.testing.assert_close(run_dense(layer, seven, segment)[:, :1], run_dense(layer, alone, segment))
