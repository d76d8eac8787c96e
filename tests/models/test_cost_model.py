"""The cost model: published blocks against their equations, the order of the parts, pooling, first states of nodes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, leaky_relu, normalize, relu

from hlorank.config import ConfigError
from hlorank.models.compression.build_plan import build_plan, max_varied_nodes
from hlorank.models.compression.declarations import Join, Mixing, Recipe
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.compression.segment import Segment, TileBatch
from hlorank.models.cost_model import POOLINGS, Block
from hlorank.models.encoder import Encoder, PiecewiseLinear
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.plan_tensors import tensors
from hlorank.stages.command import load_composed
from tests.graphs import make_inputs, make_model
from tests.models.dense_form import CPU, GATE, ROWS, assert_exact, block, embed_rows, reference_embedding, scores_of
from tests.models.oracles import ORACLES, graph_of
from tests.sections import composed

WIDTH = 8
leaky = partial(leaky_relu, negative_slope=0.2)

Layers = Callable[[str, Tensor], Tensor]
# The directions of the edges, and the equation of a block, whose layers are applied by their names.
PUBLISHED: dict[str, tuple[str, Callable[[Layers, Tensor], Tensor]]] = {
    "kaggle_1": ("users", lambda o, x: gelu(x + o(GATE, o("channel_attention", o("sage", o("instance_norm", x)))))),
    "kaggle_1_random": ("users", lambda o, x: gelu(x + o("channel_attention", o("sage", o("instance_norm", x))))),
    "kaggle_2": ("shared", lambda o, x: relu(x + o("sage", x))),
    "kaggle_5": ("separate", lambda o, x: relu(o("sage", x))),
    "kaggle_6": ("shared", lambda o, x: gelu(o("instance_norm", x + o("sage", x)))),
    "gst_paper": ("shared", lambda o, x: gelu(o("sage", x))),
    "official_layout": ("shared", lambda o, x: x + leaky(o("linear", leaky(o("gcn", x))))),
    "official_tile": ("shared", lambda o, x: normalize(leaky(o("graph_conv", x)), dim=-1)),
    "official_tile_resgcn": ("shared", lambda o, x: x + o("linear", leaky(o("gcn", leaky(x))))),
}


def run_block(block: Block, x: Tensor, segment: Segment) -> Tensor:
    recipe = Recipe((Join(), *block.steps), "early", compress=False)
    plan: Plan[Tensor] = tensors(build_plan(segment, TileBatch(np.zeros((x.shape[1], 1))), recipe), CPU)
    result: Tensor = block(x.flatten(0, 1), iter(plan.steps[1:]))
    return result.view_as(x)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_blocks_equal_their_equations(name: str) -> None:
    (kernel,) = make_inputs(kind="tile", nodes=5).segments
    directions, equation = PUBLISHED[name]
    config = load_composed(composed(f"experiment={name}")).model
    torch.manual_seed(0)
    block = Block(config.block, config.model_copy(update={"width": WIDTH}), "model.block").double().eval()
    for key, parameter in block.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter)
    x = torch.randn(5, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layers, graph = dict(block.named_layers()), graph_of(kernel, directions)
    result = run_block(block, x, kernel)
    expected = equation(lambda layer, before: ORACLES[layer](layers[layer], before, graph), x)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)
    assert (result - x).abs().max() > 0.1


def test_mixing_bounds_the_nodes_that_vary() -> None:
    model, both = make_model(), make_model(block=block("instance_norm", "configuration_attention"))
    attentive = make_model(block=block("configuration_attention"))
    assert model.recipe.mixing == {Mixing.ROW, Mixing.NEIGHBOURS}
    assert both.recipe.mixing == set(Mixing)
    assert [each.recipe.stacks_segments for each in (model, attentive, both)] == [True, False, False]
    (segment,) = make_inputs(nodes=60, distinct=4).segments
    assert 0 < segment.k_hop_prefix(0) < segment.k_hop_prefix(1) < segment.k_hop_prefix(2) <= segment.nodes == 60
    for recipe in (model.recipe, attentive.recipe):
        assert max_varied_nodes(recipe, segment) == segment.k_hop_prefix(2)
    # After the first layer that mixes over the segment every node depends on the configuration.
    for recipe in (both.recipe, replace(model.recipe, compress=False)):
        assert max_varied_nodes(recipe, segment) == 60


@pytest.mark.parametrize("pooling", [[name] for name in (*POOLINGS, "reproductions:l2_sum")] + [["max", "sum", "mean"]])
def test_poolings(pooling: list[str]) -> None:
    model, graph = make_model(pooling=pooling), make_inputs(segments=2)
    embedded = embed_rows(model, graph, 1, ROWS)
    assert embedded.shape == (len(ROWS), 6 * len(pooling))
    torch.testing.assert_close(embedded[4], reference_embedding(model, graph, 1, int(ROWS[4])))
    assert scores_of(model, graph).shape == (len(ROWS),)


@pytest.mark.parametrize("join", ["early", "late", "every"])
def test_the_order_of_the_parts(join: str) -> None:
    """The stem, the blocks and the layers after them; the configuration joins first, before blocks, or after them."""
    model = make_model(stem=["relu"], blocks=3, post_layers=["linear", "gelu"], join=join)
    graph = make_inputs()
    recipe = replace(model.recipe, compress=False)
    plan: Plan[Tensor] = tensors(graph.plan({0: ROWS}, recipe), CPU)
    indices: Any = iter(plan.steps)

    def joined(x: Tensor) -> Tensor:
        index = next(indices)
        assert isinstance(index, JoinIndex)
        return model.encoder.join(x, index, plan)

    x = model.encoder.nodes(plan)
    assert len(x) == 24 * (1 if join == "late" else len(ROWS))
    x = x if join == "late" else joined(x)
    next(indices), next(indices)  # the start of the stem, and its layer
    x = x.relu()
    for place, block_of_layers in enumerate(model.blocks):
        x = block_of_layers(joined(x) if place and join == "every" else x, indices)
    x = joined(x) if join == "late" else x
    z = gelu(model.post_layers.get_submodule("layers.0.module")(x)).view(24, len(ROWS), -1)
    assert_exact(embed_rows(model, graph, 0, ROWS), torch.cat([z.mean(0), z.max(0).values], dim=1))
    if join == "late":
        assert (z[graph.segments[0].configurable :, :1] == z[graph.segments[0].configurable :]).all()


def test_kernels_may_have_no_column_of_tiles() -> None:
    encoder = Encoder(make_model("tile").config, InputSizes("tile", 4, 6, 0), 6)
    assert encoder.configuration(torch.zeros(3, 0)).shape == (3, 6)


def test_opcodes_start_from_given_embeddings() -> None:
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
