"""The cost model: its invariants, and its fast paths against the dense form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu

from hlorank.config import ConfigError, PartitionConfig
from hlorank.data.collection import Collection, read_graph
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.models.cost_model import POOLINGS, CostModel
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers.layer import Mixing
from hlorank.models.layers.registry import LAYERS, RESIDUAL
from hlorank.models.node_states import NodeStates
from hlorank.models.serialization import input_sizes
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition, local_codes, no_halo, whole_graph
from tests.sections import featurize_options

CPU = torch.device("cpu")
MakeModel = Callable[..., CostModel]
MakeInputs = Callable[..., GraphInputs]
ROWS = np.array([3, 0, 7, 7, 11, 5, 2])
assert_exact = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)


def block(*more: str, attention: bool = False, squeeze_excite: bool = False) -> list[str]:
    """Return the usual block with more layers after message passing."""
    added = [*(["squeeze_excite"] if squeeze_excite else []), *(["configuration_attention"] if attention else [])]
    return ["layer_norm", "sage", *added, *more, "gelu", "residual"]


def scores_of(model: CostModel, graph: GraphInputs, rows: np.ndarray = ROWS) -> Tensor:
    embedded = [model.embed_rows(graph, j, rows) for j in range(len(graph.segments))]
    return model.score(torch.stack(embedded).sum(dim=0), len(embedded))


def reference_embedding(model: CostModel, graph: GraphInputs, j: int, row: int) -> Tensor:
    """Compute the embedding of one configuration of one segment, with dense matrices from the graph's arrays."""
    features, encoder, config = graph.features, model.encoder, model.config
    halo = graph.partition.halo_of(j)
    own = graph.partition.segment_of == j
    nodes = np.flatnonzero(own | np.isin(np.arange(features.nodes), halo))
    adjacency = torch.zeros(features.nodes, features.nodes, dtype=torch.float64)
    for consumer, producer in features.edge_index:
        adjacency[consumer, producer] += 1
    operands, users = (matrix[nodes][:, nodes] for matrix in (adjacency, adjacency.T))
    # With a halo, degrees are those of the whole graph.
    counted = (adjacency[nodes], adjacency.T[nodes]) if len(halo) else (operands, users)
    operand_count, user_count = (matrix.sum(1, keepdim=True).clamp(min=1) for matrix in counted)
    layouts = torch.from_numpy(features.node_layout[nodes].astype(np.int64) + 1)
    x = encoder.numeric(torch.from_numpy(features.node_feat[nodes]))
    x = x + encoder.opcode_map(encoder.opcode.weight[features.opcode[nodes].astype(int)])
    x = x + encoder.node_layout_map(encoder.layout_value.weight[layouts].flatten(1))
    configurations = features.configurations
    if isinstance(configurations, TileFeatures):
        x = x + encoder.configuration(torch.from_numpy(configurations.feat[row]))
    else:
        joined = torch.zeros_like(x)
        for column, node in enumerate(configurations.node_ids):
            if node in nodes:
                code = configurations.codes[row, column]
                values = torch.from_numpy(configurations.codebook[code].astype(int) + 1)
                sizes = torch.from_numpy(np.log2(1 + configurations.sizes[code].astype(float)) / 4)
                read = [encoder.layout_value.weight[values].flatten(), *[sizes] * config.layout_sizes]
                state = encoder.configuration(torch.cat(read))
                joined[int(np.searchsorted(nodes, node))] = state
        x = x + joined
    for one in model.blocks:
        norm, sage, *gate, _ = cast("Iterable[Any]", one.layers)
        maps = sage.maps
        z = norm.module(x)
        x_new = maps[0](z) + maps[1](operands / operand_count @ z) + maps[2](users / user_count @ z)
        for layer in gate:
            x_new = x_new * layer.gate(x_new.mean(0))
        x = x + gelu(x_new)
    x = model.post_layers.get_submodule("layers.0.module")(x)[torch.from_numpy(own[nodes])]
    configured = np.zeros(features.nodes, dtype=bool)
    configured[getattr(configurations, "node_ids", slice(None))] = True
    joint = x[torch.from_numpy(configured[own])].sum(0)
    pooled = {"mean": x.mean(0), "sum": x.sum(0), "max": x.max(0).values}
    pooled |= {"l2_sum": x.sum(0) / x.sum(0).norm(), "l2_configurable_sum": joint / joint.norm()}
    return torch.cat([pooled[name] for name in config.pooling])


@pytest.mark.parametrize(
    ("kind", "segments", "halo", "squeeze_excite", "layout_sizes"),
    [
        ("layout", 1, 0, False, True),
        ("layout", 4, 0, False, True),
        ("layout", 4, 0, False, False),
        ("layout", 4, 0, True, True),
        ("layout", 4, 1, False, True),
        ("layout", 4, 2, False, True),
        ("tile", 1, 0, False, True),
        ("tile", 1, 0, True, True),
    ],
)
def test_embeddings_equal_the_dense_form(
    kind: str,
    segments: int,
    halo: int,
    squeeze_excite: bool,
    layout_sizes: bool,
    make_model: MakeModel,
    make_inputs: MakeInputs,
) -> None:
    """Values and gradients: each local configuration computed once, against every configuration computed by itself."""
    model = make_model(kind, block=block(squeeze_excite=squeeze_excite), layout_sizes=layout_sizes)
    graph = make_inputs(segments=segments, halo=halo, kind=kind)
    weight = torch.randn(len(ROWS), 12, dtype=torch.float64)
    for j in range(segments):
        embedded = model.embed_rows(graph, j, ROWS)
        dense = torch.stack([reference_embedding(model, graph, j, row) for row in ROWS])
        assert_exact(embedded, dense)
        ours, theirs = (
            torch.autograd.grad((result * weight).sum(), list(model.parameters()), allow_unused=True)
            for result in (embedded, dense)
        )
        for one, other, parameter in zip(ours, theirs, model.parameters(), strict=True):
            zero = torch.zeros_like(parameter)  # of the head, and of encoders that the segment does not use
            assert_exact(zero if one is None else one, zero if other is None else other)


def assert_fast_equals_dense(model: CostModel, graph: GraphInputs, rows: np.ndarray, tolerance: float) -> None:
    """Compare embeddings and gradients of the fast paths with every node under every configuration.

    The dense form is computed in float64: over all nodes of unet_3d its own float32 sums are off by 1e-4.
    """
    dense = copy.deepcopy(model).double()
    dense.compress = dense.deduplicate = False
    features = replace(graph.features, node_feat=graph.features.node_feat.astype(np.float64))
    exact = GraphInputs(features, graph.partition, CPU)
    for j in range(len(graph.segments)):
        results = []
        for form, inputs in ((model, graph), (dense, exact)):
            embedded = form.embed_rows(inputs, j, rows)
            gradients = torch.autograd.grad(embedded.square().mean(), list(form.parameters()), allow_unused=True)
            results.append((embedded, [torch.zeros(()) if g is None else g for g in gradients]))
        (ours, our_gradients), (theirs, their_gradients) = results
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
        largest = max(gradient.norm() for gradient in their_gradients)
        for one, other in zip(our_gradients, their_gradients, strict=True):
            # The error of a small sum of large terms, such as a temperature's gradient, is that of the terms.
            assert (one - other).norm() <= tolerance * max(other.norm(), 0.1 * largest)


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(8, 60),
    segments=st.integers(1, 4),
    halo=st.integers(0, 3),
    seed=st.integers(0, 10**6),
    blocks=st.integers(0, 3),
    names=st.lists(st.sampled_from([*sorted(LAYERS), RESIDUAL]), max_size=5),
    stem=st.lists(st.sampled_from(sorted(LAYERS)), max_size=1),
    join=st.sampled_from(["early", "late", "every"]),
    directions=st.sampled_from(["separate", "shared"]),
    override_layout=st.booleans(),
)
def test_fast_paths_equal_the_dense_form_on_random_graphs(
    nodes: int,
    segments: int,
    halo: int,
    seed: int,
    blocks: int,
    names: list[str],
    stem: list[str],
    join: str,
    directions: str,
    override_layout: bool,
    make_model: MakeModel,
    make_inputs: MakeInputs,
) -> None:
    """In float64 only: repeated norms over a few nearly equal nodes amplify rounding a thousandfold."""
    model = make_model(
        blocks=blocks,
        block=names,
        stem=stem,
        pooling=["mean", "sum", "max", "l2_configurable_sum"],
        join=join,
        directions=directions,
        override_layout=override_layout and join == "early",
    )
    for parameter in model.parameters():
        # With GIN's epsilon at 0, two nodes without other neighbours are equal: the maximum has a tie.
        if not parameter.any():
            torch.nn.init.constant_(parameter, 0.1)
    halo = 0 if Mixing.SEGMENT in model.mixing else halo
    graph = make_inputs(segments=segments, halo=halo, nodes=nodes, distinct=4, seed=seed)
    assert_fast_equals_dense(model, graph, np.array([2, 0, 3, 3]), 1e-9)


@pytest.fixture(scope="module")
def unet_3d(shared_data: Path) -> tuple[GraphFeatures, InputSizes]:
    measured = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz", "layout")
    options = featurize_options()
    sample = TrainSample.of("unet_3d", measured, options)
    spec = fit_spec(Collection.parse("layout:xla:default"), options, [sample])
    return featurize_graph(measured, spec), input_sizes(spec)


@pytest.mark.parametrize(
    ("max_nodes", "halo", "squeeze_excite", "attention"),
    [(500, 0, False, False), (5000, 0, False, False), (500, 2, False, True), (1000, 0, True, False)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_fast_paths_equal_the_dense_form_on_unet_3d(
    unet_3d: tuple[GraphFeatures, InputSizes],
    max_nodes: int,
    halo: int,
    squeeze_excite: bool,
    attention: bool,
    dtype: torch.dtype,
    tolerance: float,
    make_model: MakeModel,
) -> None:
    features, sizes = unet_3d
    features = replace(features, node_feat=torch.from_numpy(features.node_feat).to(dtype).numpy())
    graph = GraphInputs(
        features,
        partition_graph(features, PartitionConfig(algorithm="topological", max_nodes=max_nodes, halo=halo, workers=1)),
        CPU,
    )
    torch.manual_seed(0)
    layers = block(squeeze_excite=squeeze_excite, attention=attention)
    config = make_model().config.model_copy(update={"width": 8, "blocks": 3, "block": layers})
    rows = np.random.default_rng(0).choice(features.distinct, size=5, replace=False)
    assert_fast_equals_dense(CostModel(config, sizes, "mean").to(dtype), graph, rows, tolerance)


def test_each_distinct_local_configuration_is_computed_once(
    make_model: MakeModel, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, computed = make_model(), make_inputs(segments=4), []
    embed = model.embed

    def counting(segment: Segment, batch: ConfigurationBatch) -> Tensor:
        computed.append(len(batch))
        return embed(segment, batch)

    monkeypatch.setattr(model, "embed", counting)
    for j in range(4):
        model.embed_rows(graph, j, ROWS)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    local = [layouts.codes[ROWS][:, graph.partition.segment_of[layouts.node_ids] == j] for j in range(4)]
    assert computed == [len({tuple(row) for row in codes.tolist()}) for codes in local]
    assert min(computed) < len(np.unique(ROWS))


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_scores_do_not_depend_on_what_is_ranked_together(
    layer: str, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=block(layer)), make_inputs(segments=3)
    if Mixing.CONFIGURATIONS in model.mixing:
        pytest.skip("the layer compares configurations")
    alone = torch.cat([scores_of(model, graph, ROWS[i : i + 1]) for i in range(len(ROWS))])
    assert_exact(scores_of(model, graph), alone)


def test_attention_over_configurations_ranks_them_together(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(block=block(attention=True)), make_inputs(segments=3)
    together, alone = scores_of(model, graph), scores_of(model, graph, ROWS[:1])
    assert (together[0] - alone[0]).abs() > 1e-6
    # A repeated configuration counts as often as it is repeated: sharing its embedding would change the others.
    assert not model.deduplicates
    assert (scores_of(model, graph, ROWS[:4])[0] - scores_of(model, graph, ROWS[:3])[0]).abs() > 1e-6
    model.deduplicate = False
    assert torch.equal(scores_of(model, graph), together)


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
    with pytest.raises(ConfigError, match=r"model.block: squeeze_excite would mix .* or set partition.halo to 0"):
        scores_of(make_model(block=block(squeeze_excite=True)), graph)


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_configurations_are_equivariant(layer: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(block=block(layer)), make_inputs(segments=3)
    order = np.random.default_rng(0).permutation(len(ROWS))
    scores = scores_of(model, graph)
    assert_exact(scores_of(model, graph, ROWS[order]), scores[torch.from_numpy(order)])
    assert len(np.unique(scores.detach().numpy().round(9))) == len(np.unique(ROWS))


def renumbered(features: GraphFeatures, order: np.ndarray) -> GraphFeatures:
    """Return the same graph with node order[i] as node i."""
    new_id = np.argsort(order)
    layouts = features.configurations
    assert isinstance(layouts, LayoutFeatures)
    node_ids = new_id[layouts.node_ids]
    columns = np.argsort(node_ids)
    return replace(
        features,
        node_feat=features.node_feat[order],
        opcode=features.opcode[order],
        node_layout=features.node_layout[order],
        edge_index=new_id[features.edge_index],
        configurations=replace(layouts, node_ids=node_ids[columns], codes=layouts.codes[:, columns]),
    )


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_the_order_of_nodes_does_not_matter(
    segments: int, layer: str, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=[layer, "residual"]), make_inputs(segments=segments)
    order = np.random.default_rng(0).permutation(24)
    features = renumbered(graph.features, order)
    partition = Partition(graph.partition.segment_of[order], graph.partition.local_codes)
    moved = GraphInputs(features, partition, graph.device)
    assert_exact(scores_of(model, moved), scores_of(model, graph))


def test_the_order_of_the_codebook_does_not_matter(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs(segments=3)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    order = np.array([2, 0, 1])
    codes = np.argsort(order).astype(np.uint8)[layouts.codes]
    moved = replace(layouts, codebook=layouts.codebook[order], sizes=layouts.sizes[order], codes=codes)
    changed = GraphInputs(replace(graph.features, configurations=moved), graph.partition, graph.device)
    assert_exact(scores_of(model, changed), scores_of(model, graph))


def test_a_segment_reads_only_its_own_configuration(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs(segments=3)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    column = 0
    inside = int(graph.partition.segment_of[layouts.node_ids[column]])
    codes = layouts.codes.copy()
    codes[:, column] = 2  # a code of no configuration
    changed_layouts = replace(layouts, codes=codes)
    segment_of = graph.partition.segment_of
    partition = Partition(segment_of, local_codes(changed_layouts, segment_of, no_halo()))
    changed = GraphInputs(replace(graph.features, configurations=changed_layouts), partition, graph.device)
    for j in range(3):
        before, after = (model.embed_rows(inputs, j, ROWS) for inputs in (graph, changed))
        assert torch.equal(before, after) == (j != inside)


def test_one_segment_is_the_whole_graph(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, whole = make_model(), make_inputs()
    config = PartitionConfig(algorithm="topological", max_nodes=24, halo=0, workers=1)
    cut = GraphInputs(whole.features, partition_graph(whole.features, config), whole.device)
    assert_exact(scores_of(model, cut), scores_of(model, whole))
    torch.testing.assert_close(
        scores_of(model, whole),
        scores_of(model, GraphInputs(whole.features, whole_graph(whole.features), whole.device)),
    )


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
