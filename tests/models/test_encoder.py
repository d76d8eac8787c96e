"""First states of nodes, with and without configurations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hlorank.config import ConfigError
from hlorank.featurize.features import LayoutFeatures
from hlorank.models.compression.build_plan import build_plan
from hlorank.models.compression.declarations import Join, Recipe
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.compression.segment import ConfigurationBatch, LayoutBatch, Segment, TileBatch
from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import Encoder, PiecewiseLinear
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import tensors

MakeModel = Callable[..., CostModel]
MakeInputs = Callable[..., GraphInputs]


def first_states(encoder: Encoder, segment: Segment, batch: ConfigurationBatch) -> Tensor:
    """Compute the first states with an early join, (nodes, configurations, width)."""
    recipe = Recipe((Join(),), "early", compress=False)
    plan: Plan[Tensor] = tensors(build_plan(segment, batch, recipe), torch.device("cpu"))
    (index,) = plan.steps
    assert isinstance(index, JoinIndex)
    return encoder.join(encoder.nodes(plan), index, plan).view(segment.nodes, len(batch), -1)


def reference_nodes(encoder: Encoder, graph: GraphInputs) -> Tensor:
    """Compute (nodes, width) states without configurations, node by node."""
    states = []
    for feat, opcode, layout in zip(
        graph.features.node_feat, graph.features.opcode, graph.features.node_layout, strict=True
    ):
        embedded = torch.cat([encoder.layout_value.weight[int(value) + 1] for value in layout])
        numeric = encoder.numeric.weight @ torch.from_numpy(feat) + encoder.numeric.bias
        opcode_state = encoder.opcode_map.weight @ encoder.opcode.weight[int(opcode)]
        states.append(numeric + opcode_state + encoder.node_layout_map.weight @ embedded)
    return torch.stack(states)


def test_layouts_join_at_their_configurable_nodes(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    encoder, graph, rows = make_model().encoder, make_inputs(), np.array([4, 0, 9])
    (segment,) = graph.segments
    states = first_states(encoder, segment, graph.configurations(rows[None], segment))
    expected = reference_nodes(encoder, graph)[:, None].repeat(1, 3, 1)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    for column, node in enumerate(layouts.node_ids):
        for c, row in enumerate(rows):
            code = layouts.codes[row, column]
            embedded = [encoder.layout_value.weight[int(value) + 1] for value in layouts.codebook[code]]
            sizes = [math.log2(1 + size) / 4 for size in layouts.sizes[code].tolist()]
            moves = [math.log2(1 + 1000 * moved) / 4 for moved in layouts.moves[code].tolist()]
            read = torch.cat([*embedded, torch.tensor([*sizes, *moves], dtype=torch.float64)])
            expected[node, c] += encoder.configuration(read)
    assert states.shape == (24, 3, 6)
    torch.testing.assert_close(states, expected[segment.node_ids], rtol=1e-12, atol=1e-12)


def test_without_sizes_and_moves_a_model_does_not_depend_on_them(
    make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    encoder, graph = make_model(layout_sizes=False, layout_moves=False).encoder, make_inputs()
    (segment,) = graph.segments
    batch = graph.configurations(np.arange(12)[None], segment)
    assert isinstance(batch, LayoutBatch)
    others = replace(batch, sizes=batch.sizes + 1, moves=batch.moves + 1)
    assert torch.equal(first_states(encoder, segment, batch), first_states(encoder, segment, others))


def test_sizes_and_moves_distinguish_equal_layouts(make_model: MakeModel) -> None:
    layouts = torch.tensor([[1, 0, *[-1] * 16]]).expand(4, -1)
    sizes = nn.functional.pad(torch.tensor([[3.0, 128], [128.0, 3], [3.0, 128], [3.0, 128]]), (0, 16))
    moves = torch.tensor([[0.1, 0, 0.1], [0.1, 0, 0.1], [0.1, 0.1, 0.1], [0.1, 0, 0.1]])
    states = make_model().encoder.configured(layouts, sizes, moves)
    torch.testing.assert_close(states[0], states[3])
    assert min((states[0] - other).abs().max() for other in states[1:3]) > 1e-3


def test_tiles_join_at_every_node(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    encoder, graph = make_model("tile").encoder, make_inputs(kind="tile")
    (segment,) = graph.segments
    batch = graph.configurations(np.arange(12)[None], segment)
    assert isinstance(batch, TileBatch)
    expected = reference_nodes(encoder, graph)[:, None] + encoder.configuration(torch.from_numpy(batch.feat))[None]
    torch.testing.assert_close(first_states(encoder, segment, batch), expected, rtol=1e-12, atol=1e-12)


def test_nodes_and_configurations_share_embeddings_of_layouts(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    encoder, graph = make_model().encoder, make_inputs()
    (segment,) = graph.segments
    states = first_states(encoder, segment, graph.configurations(np.arange(12)[None], segment))
    (gradient,) = torch.autograd.grad(states.sum(), encoder.layout_value.weight)
    assert encoder.layout_value.weight.shape == (7, 2)  # -1..5
    assert (gradient != 0).any(dim=1).all()


def test_tiles_that_keep_no_column(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model = make_model("tile")
    encoder = Encoder(model.config, type(model.sizes)("tile", 4, 6, 0), model.config.width).double()
    (segment,) = make_inputs(kind="tile").segments
    states = first_states(encoder, segment, TileBatch(np.zeros((3, 0))))
    assert states.shape == (24, 3, 6)
    assert torch.equal(states[:, 0], states[:, 2])


def test_opcodes_start_from_given_embeddings(make_model: MakeModel) -> None:
    encoder = make_model().encoder
    embedding = np.arange(18, dtype=np.float32).reshape(6, 3)
    encoder.start_opcodes(embedding)
    assert encoder.opcode.weight.tolist() == embedding.tolist()
    assert encoder.opcode.weight.requires_grad
    with pytest.raises(ConfigError, match=r"\b5\b.*\b3\b.*model.opcode_width"):
        encoder.start_opcodes(np.zeros((6, 5), dtype=np.float32))


def test_no_configurable_node(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    encoder, graph = make_model().encoder, make_inputs()
    (segment,) = graph.segments
    bare = replace(segment, hop_prefixes=[0])
    codebook, sizes = np.zeros((0, 18), dtype=np.int64), np.zeros((0, 18), dtype=np.float32)
    nothing = LayoutBatch(codebook, sizes, np.zeros((0, 3), dtype=np.float32), np.zeros((2, 0), dtype=np.int64))
    states = first_states(encoder, bare, nothing)
    torch.testing.assert_close(states, reference_nodes(encoder, graph)[segment.node_ids, None].expand(-1, 2, -1))


def test_piecewise_linear_encoding() -> None:
    encoding = PiecewiseLinear(2, 4)
    # The quantiles of 0, 1, 2, 3, 10 are themselves; those of a column with two values repeat.
    encoding.start(np.array([[0, 0], [1, 0], [2, 0], [3, 0], [10, 1]], dtype=np.float32))
    edges = encoding.edges.clone()
    encoding.start(np.zeros((0, 2), dtype=np.float32))
    assert torch.equal(encoding.edges, edges)
    encoded = encoding(torch.tensor([[-5.0, 0.0], [1.5, 0.5], [6.5, 1.0]])).view(3, 4, 2)
    assert encoded[:, :, 0].tolist() == [[-1, -1, -1, -1], [1, 0, -1, -1], [1, 1, 1, 0]]
    assert encoded[:, :, 1].tolist() == [[-1, -1, -1, -1], [1, 1, 1, 0], [1, 1, 1, 1]]
