"""Segments side by side: the embeddings of each are those that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import PartitionConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.models.compression.segment import stack
from hlorank.models.cost_model import POOLINGS, CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.partition.partitioners import partition_graph

MakeModel = Callable[..., CostModel]


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(16, 60),
    max_nodes=st.integers(4, 20),
    algorithm=st.sampled_from(["topological", "metis"]),
    halo=st.integers(0, 2),
    block=st.sampled_from(
        [["sage", "gelu", "residual"], ["gatv2", "sage"], ["gcn", "dropout"], ["reproductions:EdgeMlp"], ["linear"]]
    ),
    join_at=st.sampled_from(["early", "late", "every"]),
    compress=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_joined_segments_have_the_embeddings_that_they_have_alone(
    nodes: int,
    max_nodes: int,
    algorithm: str,
    halo: int,
    block: list[str],
    join_at: str,
    compress: bool,
    seed: int,
    make_model: MakeModel,
    make_features: Callable[..., GraphFeatures],
) -> None:
    features, rng = make_features(nodes=nodes, seed=seed, dtype=np.float64), np.random.default_rng(seed)
    cut = partition_graph(features, PartitionConfig(algorithm=algorithm, max_nodes=max_nodes, halo=halo))
    graph = GraphInputs(features, cut)
    model = make_model(block=block, join=join_at, pooling=list(POOLINGS), dropout=0.0).eval()
    recipe = replace(model.recipe, compress=compress)
    chosen = rng.permutation(cut.segments)[: rng.integers(1, cut.segments + 1)].tolist()
    rows = {j: rng.choice(features.distinct, size=rng.integers(1, 5), replace=False) for j in chosen}
    kept = {j: rng.random(len(graph.segments[j].edges)) < 0.7 for j in chosen}
    together = model(PackedPlan(graph.plan(rows, recipe, np.concatenate([*kept.values()]))).unpack())
    together = together.view(len(chosen), -1, model.embedding_width)
    own = [embedding[: len(rows[j])] for j, embedding in zip(chosen, together, strict=True)]
    alone = [model(PackedPlan(graph.plan({j: rows[j]}, recipe, kept[j])).unpack()) for j in chosen]
    torch.testing.assert_close(own, alone, rtol=1e-9, atol=1e-12)
    gradients = [
        torch.autograd.grad(sum(one.square().sum() for one in some), list(model.parameters()), allow_unused=True)
        for some in (own, alone)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_joined_segments_share_what_is_equal(make_inputs: Callable[..., GraphInputs], make_model: MakeModel) -> None:
    graph, recipe, rows = make_inputs(segments=4), make_model().recipe, np.arange(5)
    joined = stack(list(graph.segments))
    assert joined.nodes == sum(segment.nodes for segment in graph.segments)
    assert sorted(joined.node_ids.tolist()) == list(range(joined.nodes))
    np.testing.assert_array_equal(graph.partition.segment_of[joined.node_ids], joined.part)
    assert len(np.unique(joined.initial_colour)) == len(joined.colours) == len(joined.colour_numeric)
    for k in range(4):
        assert joined.k_hop_prefix(k) == sum(segment.k_hop_prefix(k) for segment in graph.segments)
    together = graph.plan(dict.fromkeys(range(4), rows), recipe).rows
    assert together <= sum(graph.plan({j: rows}, recipe).rows for j in range(4))


def test_one_segment_is_joined_with_nothing(make_inputs: Callable[..., GraphInputs]) -> None:
    segment = make_inputs(segments=2).segments[1]
    assert stack([segment]) is segment


@pytest.mark.parametrize(
    ("block", "joined"), [(["sage", "gelu"], True), (["instance_norm"], False), (["configuration_attention"], False)]
)
def test_segments_are_joined_where_states_depend_on_others_along_edges(
    block: list[str], joined: bool, make_model: MakeModel
) -> None:
    assert make_model(block=block).recipe.stacks_segments == joined
