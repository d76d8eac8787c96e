"""First states of nodes; the values with configurations are those of `dense_form.reference_embedding`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hlorank.config import ConfigError
from hlorank.models.compression.build_plan import build_plan
from hlorank.models.compression.declarations import Join, Recipe
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.compression.segment import ConfigurationBatch, LayoutBatch, Segment, TileBatch
from hlorank.models.encoder import Encoder, PiecewiseLinear
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.plan_tensors import tensors
from tests.models.dense_form import CPU, MakeInputs, MakeModel


def first_states(encoder: Encoder, segment: Segment, batch: ConfigurationBatch) -> tuple[Tensor, Tensor]:
    """Compute the states of nodes, (nodes, configurations, width), before and after an early join."""
    recipe = Recipe((Join(),), "early", compress=False)
    plan: Plan[Tensor] = tensors(build_plan(segment, batch, recipe), CPU)
    (index,) = plan.steps
    assert isinstance(index, JoinIndex)
    before = encoder.nodes(plan)
    shape = segment.nodes, len(batch), -1
    return before.view(shape), encoder.join(before, index, plan).view(shape)


def test_without_sizes_and_moves_a_model_does_not_depend_on_them(
    make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    encoder, graph = make_model(layout_sizes=False, layout_moves=False).encoder, make_inputs()
    (segment,) = graph.segments
    batch = graph.configurations(np.arange(12)[None], segment)
    assert isinstance(batch, LayoutBatch)
    others = replace(batch, sizes=batch.sizes + 1, moves=batch.moves + 1)
    assert torch.equal(first_states(encoder, segment, batch)[1], first_states(encoder, segment, others)[1])


def test_sizes_and_moves_distinguish_equal_layouts(make_model: MakeModel) -> None:
    layouts = torch.tensor([[1, 0, *[-1] * 16]]).expand(4, -1)
    sizes = nn.functional.pad(torch.tensor([[3.0, 128], [128.0, 3], [3.0, 128], [3.0, 128]]), (0, 16))
    moves = torch.tensor([[0.1, 0, 0.1], [0.1, 0, 0.1], [0.1, 0.1, 0.1], [0.1, 0, 0.1]])
    states = make_model().encoder.configured(layouts, sizes, moves)
    torch.testing.assert_close(states[0], states[3])
    assert min((states[0] - other).abs().max() for other in states[1:3]) > 1e-3


def test_nodes_and_configurations_share_embeddings_of_layouts(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    encoder, graph = make_model().encoder, make_inputs()
    (segment,) = graph.segments
    _, states = first_states(encoder, segment, graph.configurations(np.arange(12)[None], segment))
    (gradient,) = torch.autograd.grad(states.sum(), encoder.layout_value.weight)
    assert encoder.layout_value.weight.shape == (7, 2)  # -1..5
    assert (gradient != 0).any(dim=1).all()


def test_no_configurable_node_and_no_column_of_tiles(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    (segment,) = make_inputs().segments
    numbers = np.zeros((0, 18), dtype=np.float32), np.zeros((0, 3), dtype=np.float32)
    nothing = LayoutBatch(np.zeros((0, 18), dtype=np.int64), *numbers, np.zeros((2, 0), dtype=np.int64))
    before, after = first_states(make_model().encoder, replace(segment, hop_prefixes=[0]), nothing)
    torch.testing.assert_close(after, before.expand_as(after))
    encoder = Encoder(make_model("tile").config, InputSizes("tile", 4, 6, 0), 6).double()
    (kernel,) = make_inputs(kind="tile").segments
    _, states = first_states(encoder, kernel, TileBatch(np.zeros((3, 0))))
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
