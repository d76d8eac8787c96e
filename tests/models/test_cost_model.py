"""The cost model: published blocks against their equations, the order of the parts, pooling, aggregation, mixing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.nn.functional import gelu, leaky_relu, normalize, relu

from hlorank.config import ConfigError
from hlorank.models.compression.build_plan import build_plan, max_varied_nodes
from hlorank.models.compression.declarations import Join, Mixing, Recipe
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.compression.segment import Edges, Segment, TileBatch
from hlorank.models.cost_model import POOLINGS, Block, CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import tensors
from hlorank.stages.command import load_composed
from tests.models.dense_form import (
    CPU,
    ROWS,
    MakeInputs,
    MakeModel,
    assert_exact,
    block,
    embed_rows,
    reference_embedding,
    scores_of,
)

CONF = Path(__file__).parents[2] / "conf"
WIDTH = 8

# Node 1 consumes 0, node 2 consumes 0 and 1, and node 3 consumes 2. Operands and users of each node, in the columns:
ENDS = np.array([[1, 0], [2, 0], [2, 1], [3, 2]])
OPERANDS = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
OPERAND_MEAN = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
USER_MEAN = torch.tensor([[0, 1 / 2, 1 / 2, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.float64)
# Over both: every node has 2, 2, 3 and 1 neighbours.
SUM = OPERANDS + OPERANDS.T
MEAN = SUM / torch.tensor([[2.0], [2.0], [3.0], [1.0]], dtype=torch.float64)
DEGREE = torch.tensor([3.0, 3.0, 4.0, 2.0], dtype=torch.float64)  # the node itself counts
SYMMETRIC = (SUM + torch.eye(4)) / (DEGREE[:, None] * DEGREE).sqrt()


def over(matrix: Tensor, x: Tensor) -> Tensor:
    """Compute the sum over nodes, for each configuration and channel."""
    return torch.einsum("vu,ucw->vcw", matrix, x)


def convolved(layer: Any, x: Tensor, *matrices: Tensor) -> Tensor:
    """Compute W_0 x + sum over matrices A_k of W_k A_k x + b."""
    own, *others = layer.weights
    y: Tensor = x @ own.T + layer.bias
    for matrix, one in zip(matrices, others, strict=True):
        y = y + over(matrix, x) @ one.T
    return y


def shared(layer: Any, x: Tensor) -> Tensor:
    """Compute W x + b, with the same W for all neighbours."""
    y: Tensor = x @ layer.weights[0].T + layer.bias
    return y


def instance_normed(x: Tensor) -> Tensor:
    """Normalize over the four nodes; the learned scale is 1 and the offset 0 at first."""
    centred = x - x.sum(0) / 4
    return centred / (centred.square().sum(0) / 4 + 1e-5).sqrt()


def gated(layer: Any, x: Tensor) -> Tensor:
    """Compute channel attention."""
    first, second = layer.module.gate[0], layer.module.gate[2]
    return x / (1 + torch.exp(-second(relu(first(x)))))


def compared(x: Tensor) -> Tensor:
    """Compute the gate over configurations; the temperature is 0.5 at first."""
    weight = torch.exp(2 * x)
    return torch.cat([x, x.shape[1] * weight / weight.sum(1, keepdim=True) * x], dim=-1)


leaky = partial(leaky_relu, negative_slope=0.2)


def tgraph(layers: Any, x: Tensor) -> Tensor:
    """Of the source: the convolution halves the width, and the gate doubles it; messages come from users."""
    y = gated(layers[2], convolved(layers[1], instance_normed(x), USER_MEAN))
    assert y.shape[-1] == WIDTH / 2
    return gelu(x + compared(y))


def tgraph_random(layers: Any, x: Tensor) -> Tensor:
    return gelu(x + gated(layers[2], convolved(layers[1], instance_normed(x), USER_MEAN)))


def second_place(layers: Any, x: Tensor) -> Tensor:
    return relu(x + convolved(layers[0], x, MEAN))


def fifth_place(layers: Any, x: Tensor) -> Tensor:
    return relu(convolved(layers[0], x, OPERAND_MEAN, USER_MEAN))


def sixth_place(layers: Any, x: Tensor) -> Tensor:
    return gelu(instance_normed(x + convolved(layers[0], x, MEAN)))


def gst(layers: Any, x: Tensor) -> Tensor:
    return gelu(convolved(layers[0], x, MEAN))


def res_model(layers: Any, x: Tensor) -> Tensor:
    return x + leaky(layers[2].module(leaky(shared(layers[0], over(SYMMETRIC, x)))))


def official_sage(layers: Any, x: Tensor) -> Tensor:
    return normalize(leaky(convolved(layers[0], x, SUM)), dim=-1)


def official_res_gcn(layers: Any, x: Tensor) -> Tensor:
    y: Tensor = layers[3].module(leaky(shared(layers[1], over(SYMMETRIC, leaky(x)))))
    return x + y


PUBLISHED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "kaggle_1": tgraph,
    "kaggle_1_random": tgraph_random,
    "kaggle_2": second_place,
    "kaggle_5": fifth_place,
    "kaggle_6": sixth_place,
    "gst_paper": gst,
    "official_layout": res_model,
    "official_tile": official_sage,
    "official_tile_resgcn": official_res_gcn,
}


@pytest.fixture
def segment(make_inputs: Callable[..., GraphInputs]) -> Segment:
    (kernel,) = make_inputs(kind="tile", nodes=4).segments
    return replace(kernel, edges=Edges(ENDS, 4, 4, None))


def plan_of(block: Block, configurations: int, segment: Segment) -> Plan[Tensor]:
    recipe = Recipe((Join(), *block.steps), "early", compress=False)
    batch = TileBatch(np.zeros((configurations, 1), dtype=np.float32))
    plan: Plan[Tensor] = tensors(build_plan(segment, batch, recipe), CPU)
    return plan


def run_block(block: Block, x: Tensor, segment: Segment) -> Tensor:
    _, *indices = plan_of(block, x.shape[1], segment).steps
    result: Tensor = block(x.flatten(0, 1), iter(indices))
    return result.view_as(x)


def states() -> Tensor:
    return torch.randn(4, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_blocks_equal_their_equations(name: str, segment: Segment) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = load_composed(compose("config", overrides=[f"experiment={name}"])).model
    config = config.model_copy(update={"width": WIDTH})
    torch.manual_seed(0)
    block = Block(config.block, config, "model.block").double().eval()
    for key, parameter in block.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter)
    x = states()
    result = run_block(block, x, segment)
    torch.testing.assert_close(result, PUBLISHED[name](block.layers, x), rtol=1e-6, atol=1e-7)
    assert (result - x).abs().max() > 0.1


def test_a_residual_adds_the_input_of_the_block(make_model: Callable[..., CostModel], segment: Segment) -> None:
    config, x = make_model(width=WIDTH).config, states()
    names = ["relu", "residual", "residual", "linear", "residual"]
    block = Block(names, config, "model.block").double()
    _, linear = block.layers
    expected = linear.get_submodule("module")(relu(x) + 2 * x) + x
    torch.testing.assert_close(run_block(block, x, segment), expected)


def test_mixing_bounds_the_nodes_that_vary(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, both = make_model(), make_model(block=block("instance_norm", "configuration_attention"))
    assert model.recipe.mixing == {Mixing.ROW, Mixing.NEIGHBOURS}
    assert both.recipe.mixing == set(Mixing)
    (segment,) = make_inputs(nodes=60, distinct=4).segments
    assert 0 < segment.k_hop_prefix(0) < segment.k_hop_prefix(1) < segment.k_hop_prefix(2) <= segment.nodes == 60
    assert max_varied_nodes(model.recipe, segment) == segment.k_hop_prefix(2)
    attentive = make_model(block=block("configuration_attention"))
    assert max_varied_nodes(attentive.recipe, segment) == segment.k_hop_prefix(2)
    # After the first layer that mixes over the segment every node depends on the configuration.
    assert max_varied_nodes(both.recipe, segment) == 60
    assert max_varied_nodes(replace(model.recipe, compress=False), segment) == 60


def test_no_halo_where_a_layer_mixes_over_the_segment(make_model: MakeModel) -> None:
    model = make_model(block=block("instance_norm"))
    with pytest.raises(ConfigError, match=r"model.block: instance_norm .* partition.halo"):
        model.check_halo(halo=True)


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_aggregation(aggregation: str, make_model: MakeModel) -> None:
    model = make_model(aggregation=aggregation)
    total = torch.randn(3, 12, dtype=torch.float64)
    expected = model.head(total / 4 if aggregation == "mean" else total)[:, 0]
    assert model.score(total, 4).shape == (3,)
    assert_exact(model.score(total, 4), expected)


@pytest.mark.parametrize("pooling", [[name] for name in (*POOLINGS, "reproductions:l2_sum")] + [["max", "sum", "mean"]])
def test_poolings(pooling: list[str], make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(pooling=pooling), make_inputs(segments=2)
    embedded = embed_rows(model, graph, 1, ROWS)
    assert embedded.shape == (len(ROWS), 6 * len(pooling))
    torch.testing.assert_close(embedded[4], reference_embedding(model, graph, 1, int(ROWS[4])))
    assert scores_of(model, graph).shape == (len(ROWS),)


@pytest.mark.parametrize("join", ["early", "late", "every"])
def test_the_order_of_the_parts(join: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    """The stem, the blocks and the layers after them; the configuration joins first, before blocks, or after them."""
    model = make_model(stem=["relu"], blocks=3, post_layers=["linear", "gelu"], join=join)
    graph = make_inputs()
    recipe = replace(model.recipe, compress=False, deduplicate=False)
    plan: Plan[Tensor] = tensors(graph.plan({0: ROWS}, recipe), CPU)
    indices = iter(plan.steps)

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


def test_a_linear_head_over_a_sum_is_a_sum_over_nodes(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(head="linear", pooling=["sum"]), make_inputs(segments=3)
    state_sum = torch.zeros(len(ROWS), dtype=torch.float64)
    weight, bias = model.head.get_parameter("weight"), model.head.get_parameter("bias")
    model.recipe = replace(model.recipe, compress=False, deduplicate=False)
    states: list[Tensor] = []
    model.post_layers.register_forward_hook(lambda *call: states.append(call[2]))
    scores = scores_of(model, graph)
    for values, segment in zip(states, graph.segments, strict=True):
        state_sum = state_sum + (values.view(segment.nodes, len(ROWS), -1) @ weight[0]).sum(dim=0)
    assert_exact(scores, state_sum + bias)
