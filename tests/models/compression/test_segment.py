"""Edges of a segment and their weights; stacked segments have the embeddings that each has alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hlorank.config import Directions, PartitionConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.models.compression.declarations import EdgeKind, Norm
from hlorank.models.compression.segment import Edges, stack
from hlorank.models.cost_model import POOLINGS, CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.partition.partitioners import partition_graph

ENDS = np.array([[1, 0], [2, 0], [2, 1], [2, 1]])  # node 2 reads node 1 twice; nothing reads node 3
OPERANDS = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0]])
BOTH: tuple[Directions, ...] = "separate", "shared"


@pytest.fixture
def edges() -> Edges:
    return Edges(ENDS, 4, 2, None)


def matrices(edges: Edges, norm: Norm, directions: Directions) -> list[np.ndarray]:
    """The weights as matrices, one for each edge type."""
    starts, source, edge_type, weight, _ = edges.neighbourhood(EdgeKind(norm, directions))
    result = np.zeros((3 if directions == "separate" else 2, 4, 4))
    np.add.at(result, (edge_type, np.repeat(np.arange(4), np.diff(starts)), source), weight)
    return list(result)


def test_sums_have_ones(edges: Edges) -> None:
    own, operands, users = matrices(edges, Norm.SUM, "separate")
    assert_array_equal(own, np.eye(4))
    assert_array_equal(operands, OPERANDS)
    assert_array_equal(users, OPERANDS.T)
    own, both = matrices(edges, Norm.SUM, "shared")
    assert_array_equal(own, np.eye(4))
    assert_array_equal(both, OPERANDS + OPERANDS.T)


def test_means_divide_by_the_neighbours_of_an_edge_type(edges: Edges) -> None:
    own, operands, users = matrices(edges, Norm.MEAN, "separate")
    assert_array_equal(own, np.eye(4))
    assert_allclose(operands, OPERANDS / np.array([[1], [1], [3], [1]]))
    assert_allclose(users, OPERANDS.T / np.array([[2], [2], [1], [1]]))
    own, both = matrices(edges, Norm.MEAN, "shared")
    assert_array_equal(own, np.eye(4))
    assert_allclose(both, (OPERANDS + OPERANDS.T) / np.array([[2], [3], [3], [1]]))
    assert_allclose(matrices(edges, Norm.MEAN, "users")[1], OPERANDS.T / np.array([[2], [2], [1], [1]]))


def test_symmetric_weights_equal_pytorch_geometric(edges: Edges) -> None:
    both = torch.from_numpy(np.concatenate([ENDS.T, ENDS.T[::-1]], axis=1))
    index, weight = gcn_norm(both, num_nodes=4, dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64).index_put_((index[1], index[0]), weight, accumulate=True)
    for directions in BOTH:
        assert_allclose(sum(matrices(edges, Norm.SYMMETRIC, directions)), expected)
        assert_allclose(np.diag(matrices(edges, Norm.SYMMETRIC, directions)[0]), 1 / np.array([3, 4, 4, 1]))


@pytest.mark.parametrize("directions", BOTH)
def test_given_degrees_replace_those_of_the_edges(directions: Directions) -> None:
    shared = directions == "shared"
    operands, users = np.array([5, 1, 4, 0]), np.array([2, 3, 0, 1])
    edges = Edges(ENDS, 4, 2, (operands, users))
    _, first, *_ = matrices(edges, Norm.MEAN, directions)
    assert first[2, 1] == pytest.approx(2 / (4 + 0 if shared else 4))
    assert first[1, 0] == pytest.approx(1 / (1 + 3 if shared else 1))
    own, first, *_ = matrices(edges, Norm.SYMMETRIC, directions)
    assert_allclose(np.diag(own), 1 / (1 + operands + users))
    assert first[2, 1] == pytest.approx(2 / np.sqrt((1 + 4) * (1 + 4)))
    assert first[1, 0] == pytest.approx(1 / np.sqrt((1 + 4) * (1 + 7)))


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("directions", BOTH)
def test_each_node_receives_from_itself_first_and_then_by_type(
    norm: Norm, directions: Directions, edges: Edges
) -> None:
    starts, source, edge_type, weight, hashes = edges.neighbourhood(EdgeKind(norm, directions))
    assert_array_equal(np.diff(starts), [3, 4, 4, 1])  # the node itself, and its neighbours
    assert_array_equal(source[starts[:-1]], np.arange(4))
    for start, stop in pairwise(starts):
        assert_array_equal(edge_type[start:stop], sorted(edge_type[start:stop]))
        assert_array_equal(edge_type[start:stop] == 0, [True] + [False] * (stop - start - 1))
    # Entries have equal hashes exactly if edge type and weight agree.
    pairs = list(zip(edge_type.tolist(), weight.tolist(), strict=True))
    assert len(set(zip(pairs, hashes.data.tolist(), strict=True))) == len(set(pairs)) == len(set(hashes.data.tolist()))
    assert_array_equal(hashes.indices, source)
    assert_array_equal(hashes.indptr, starts)


def test_edges_to_configurable_nodes(edges: Edges) -> None:
    starts, source, edge_type, *_ = edges.neighbourhood(EdgeKind(Norm.SUM, "separate", to_configurable=True))
    assert_array_equal(np.diff(starts), [3, 4, 1, 1])  # the first two are configurable
    assert_array_equal(source, [0, 1, 2, 1, 0, 2, 2, 2, 3])
    assert_array_equal(edge_type, [0, 2, 2, 0, 1, 2, 2, 0, 0])


def test_degrees_of_some_edges_count_these_only(edges: Edges) -> None:
    assert len(edges) == 4
    fewer = edges.only(np.array([True, False, True, False]))
    assert len(fewer) == 2
    assert_array_equal(fewer.ends, [[1, 0], [2, 1]])
    assert_array_equal(matrices(fewer, Norm.MEAN, "separate")[1], [[0] * 4, [1, 0, 0, 0], [0, 1, 0, 0], [0] * 4])
    none = edges.only(np.zeros(4, dtype=bool))
    assert_array_equal(matrices(none, Norm.MEAN, "shared")[1], np.zeros((4, 4)))
    assert_array_equal(none.neighbourhood(EdgeKind(Norm.SYMMETRIC, "shared")).weight, np.ones(4))


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
def test_stacked_segments_have_the_embeddings_that_they_have_alone(
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


def test_stacked_segments_share_what_is_equal(make_inputs: Callable[..., GraphInputs], make_model: MakeModel) -> None:
    graph, recipe, rows = make_inputs(segments=4), make_model().recipe, np.arange(5)
    joined = stack(list(graph.segments))
    assert stack([graph.segments[1]]) is graph.segments[1]
    assert joined.nodes == sum(segment.nodes for segment in graph.segments)
    assert sorted(joined.node_ids.tolist()) == list(range(joined.nodes))
    np.testing.assert_array_equal(graph.partition.segment_of[joined.node_ids], joined.part)
    assert len(np.unique(joined.initial_colour)) == len(joined.colours) == len(joined.colour_numeric)
    for k in range(4):
        assert joined.k_hop_prefix(k) == sum(segment.k_hop_prefix(k) for segment in graph.segments)
    together = graph.plan(dict.fromkeys(range(4), rows), recipe).states
    assert together <= sum(graph.plan({j: rows}, recipe).states for j in range(4))


@pytest.mark.parametrize(
    ("block", "joined"), [(["sage", "gelu"], True), (["instance_norm"], False), (["configuration_attention"], False)]
)
def test_segments_are_stacked_where_states_depend_on_others_along_edges(
    block: list[str], joined: bool, make_model: MakeModel
) -> None:
    assert make_model(block=block).recipe.stacks_segments == joined
