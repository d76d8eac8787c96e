"""The parts of the cost model: their order, pooling, aggregation, joining of configurations, mixing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from hlorank.config import ConfigError
from hlorank.models.compression.build_plan import max_varied_nodes
from hlorank.models.compression.declarations import Mixing
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.cost_model import POOLINGS
from hlorank.models.plan_tensors import tensors
from tests.models.dense_form import (
    CPU,
    ROWS,
    MakeInputs,
    MakeModel,
    assert_exact,
    block,
    reference_embedding,
    scores_of,
)
from tests.models.run_layer import embed_rows


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


@pytest.mark.parametrize("key", ["stem", "block", "post_layers"])
def test_an_unknown_layer_is_an_error(key: str, make_model: MakeModel) -> None:
    with pytest.raises(ConfigError, match=rf"model.{key}=transformer: .*sage"):
        make_model(**{key: ["transformer"]})


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_the_configuration_joins_early_late_or_repeatedly(
    kind: str, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    """The weights are the same; with a late join the states of other nodes do not depend on the configuration."""
    models = {join: make_model(kind, join=join) for join in ("early", "late", "every")}
    graph = make_inputs(kind=kind)
    embedded = {join: embed_rows(model, graph, 0, ROWS) for join, model in models.items()}
    for one, other in [("early", "late"), ("early", "every"), ("late", "every")]:
        assert (embedded[one] - embedded[other]).abs().max() > 1e-6


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
