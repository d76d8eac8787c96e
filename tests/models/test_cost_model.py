"""The parts of the cost model: their order, pooling, aggregation, joining of configurations, mixing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from hlorank.config import ConfigError
from hlorank.models.cost_model import POOLINGS
from hlorank.models.layers.layer import Mixing
from hlorank.models.node_states import NodeStates
from tests.models.dense_form import (
    ROWS,
    MakeInputs,
    MakeModel,
    assert_exact,
    block,
    reference_embedding,
    scores_of,
)


def test_mixing_bounds_the_nodes_that_vary(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, both = make_model(), make_model(block=block(squeeze_excite=True, attention=True))
    assert model.mixing == {Mixing.ROW, Mixing.NEIGHBOURS}
    assert both.mixing == set(Mixing)
    (segment,) = make_inputs(nodes=60, distinct=4).segments
    assert 0 < segment.k_hop_prefix(0) < segment.k_hop_prefix(1) < segment.k_hop_prefix(2) <= segment.nodes == 60
    assert model.max_varied_nodes(segment) == segment.k_hop_prefix(2)
    attentive = make_model(block=block(attention=True))
    assert attentive.max_varied_nodes(segment) == segment.k_hop_prefix(2)
    # After the first layer that mixes over the segment every node depends on the configuration.
    assert both.max_varied_nodes(segment) == 60
    model.compress = False
    assert model.max_varied_nodes(segment) == 60


def test_no_halo_where_a_layer_mixes_over_the_segment(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=3, halo=1)
    with pytest.raises(ConfigError, match=r"model.block: squeeze_excite .* partition.halo"):
        scores_of(make_model(block=block(squeeze_excite=True)), graph)


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_aggregation(aggregation: str, make_model: MakeModel) -> None:
    model = make_model(aggregation=aggregation)
    total = torch.randn(3, 12, dtype=torch.float64)
    expected = model.head(total / 4 if aggregation == "mean" else total)[:, 0]
    assert model.score(total, 4).shape == (3,)
    assert_exact(model.score(total, 4), expected)


@pytest.mark.parametrize("pooling", [[name] for name in POOLINGS] + [["max", "sum", "mean"]])
def test_poolings(pooling: list[str], make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(pooling=pooling), make_inputs(segments=2)
    embedded = model.embed_rows(graph, 1, ROWS)
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
    (segment,) = graph.segments
    batch = graph.configurations(ROWS, segment)
    embedded = {join: model.embed(segment, batch) for join, model in models.items()}
    for one, other in [("early", "late"), ("early", "every"), ("late", "every")]:
        assert (embedded[one] - embedded[other]).abs().max() > 1e-6
    late = models["late"]
    state = late.encoder.nodes(segment, 1, share=True)
    for block_of_layers in late.blocks:
        state = block_of_layers(state, segment, True)
    x = late.encoder.join(state.repeat(len(ROWS)), segment, batch).dense()
    assert (x[segment.k_hop_prefix(0) :, :1] == x[segment.k_hop_prefix(0) :]).all()
    z = late.post_layers.get_submodule("layers.0.module")(x)
    assert_exact(embedded["late"], torch.cat([z.mean(0), z.max(0).values], dim=1))


def test_the_order_of_the_parts(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    """The stem, the blocks with the configuration joined again before each but the first, and the layers after them."""
    model, graph = make_model(stem=["relu"], blocks=3, post_layers=["linear", "gelu"], join="every"), make_inputs()
    (segment,) = graph.segments
    batch = graph.configurations(ROWS, segment)

    def joined(x: Tensor) -> Tensor:
        return model.encoder.join(NodeStates.of_dense(x), segment, batch).dense()

    x = joined(model.encoder.nodes(segment, len(ROWS), share=True).dense()).relu()
    for place, block_of_layers in enumerate(model.blocks):
        x = block_of_layers(NodeStates.of_dense(joined(x) if place else x), segment, False).dense()
    z = gelu(model.post_layers.get_submodule("layers.0.module")(x))
    assert_exact(model.embed(segment, batch), torch.cat([z.mean(0), z.max(0).values], dim=1))


def test_edges_are_dropped_in_training_only(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(drop_edge=0.5), make_inputs()
    (segment,) = graph.segments
    batch = graph.configurations(ROWS, segment)
    assert model.training
    torch.manual_seed(3)
    dropped = model.embed(segment, batch)
    torch.manual_seed(3)
    kept = torch.rand(len(segment.edges)).numpy() >= 0.5
    assert 0 < kept.sum() < len(kept)
    model.eval()
    assert_exact(dropped, model.embed(replace(segment, edges=segment.edges.only(kept)), batch))
    assert (dropped - model.embed(segment, batch)).abs().max() > 1e-6


def test_a_linear_head_over_a_sum_is_a_sum_over_nodes(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(head="linear", pooling=["sum"]), make_inputs(segments=3)
    state_sum = torch.zeros(len(ROWS), dtype=torch.float64)
    weight, bias = model.head.get_parameter("weight"), model.head.get_parameter("bias")
    for segment in graph.segments:
        batch = graph.configurations(ROWS, segment)
        state = model.encoder.join(model.encoder.nodes(segment, len(batch), share=True), segment, batch)
        for one in [*model.blocks, model.post_layers]:
            state = one(state, segment, True)
        state_sum = state_sum + (state.dense() @ weight[0]).sum(dim=0)
    assert_exact(scores_of(model, graph), state_sum + bias)
