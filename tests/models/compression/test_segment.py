"""Edges of a segment and their weights; stacked segments have the embeddings that each has alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from hlorank.models.cost_model import POOLINGS
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.partition.partitioners import partition_graph
from tests.models.dense_form import MakeInputs, MakeModel

ENDS = np.array([[1, 0], [2, 0], [2, 1], [2, 1]])  # node 2 reads node 1 twice; nothing reads node 3
OPERANDS = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0]])
USERS, EITHER = OPERANDS.T, OPERANDS + OPERANDS.T
GIVEN = np.array([5, 1, 4, 0]), np.array([2, 3, 0, 1])  # degrees in the whole graph: operands and users
KEPT = np.array([True, False, True, False])
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


@pytest.mark.parametrize(
    ("norm", "directions", "received", "degrees"),
    [
        (Norm.SUM, "separate", [OPERANDS, USERS], [[1] * 4, [1] * 4]),
        (Norm.SUM, "shared", [EITHER], [[1] * 4]),
        (Norm.SUM, "users", [USERS], [[1] * 4]),
        (Norm.MEAN, "separate", [OPERANDS, USERS], [[1, 1, 3, 1], [2, 2, 1, 1]]),
        (Norm.MEAN, "shared", [EITHER], [[2, 3, 3, 1]]),
        (Norm.MEAN, "users", [USERS], [[2, 2, 1, 1]]),
    ],
)
def test_sums_have_ones_and_means_divide_by_the_neighbours_of_an_edge_type(
    norm: Norm, directions: Directions, received: list[np.ndarray], degrees: list[list[int]], edges: Edges
) -> None:
    expected = [np.eye(4), *(matrix / np.c_[degree] for matrix, degree in zip(received, degrees, strict=True))]
    assert_allclose(matrices(edges, norm, directions), expected)


def test_symmetric_weights_equal_pytorch_geometric(edges: Edges) -> None:
    both = torch.from_numpy(np.concatenate([ENDS.T, ENDS.T[::-1]], axis=1))
    index, weight = gcn_norm(both, num_nodes=4, dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64).index_put_((index[1], index[0]), weight, accumulate=True)
    for directions in BOTH:
        assert_allclose(sum(matrices(edges, Norm.SYMMETRIC, directions)), expected)
        assert_allclose(np.diag(matrices(edges, Norm.SYMMETRIC, directions)[0]), 1 / np.array([3, 4, 4, 1]))


@pytest.mark.parametrize("directions", BOTH)
def test_degrees_of_the_whole_graph_or_of_the_kept_edges(directions: Directions, edges: Edges) -> None:
    whole, count = Edges(ENDS, 4, 2, GIVEN), GIVEN[0] + GIVEN[1]
    _, first, *_ = matrices(whole, Norm.MEAN, directions)
    assert first[2, 1] == pytest.approx(2 / 4)
    assert first[1, 0] == pytest.approx(1 / (count[1] if directions == "shared" else GIVEN[0][1]))
    own, first, *_ = matrices(whole, Norm.SYMMETRIC, directions)
    assert_allclose(np.diag(own), 1 / (1 + count))
    assert_allclose((first[2, 1], first[1, 0]), (2 / 5, 1 / np.sqrt(5 * 8)))
    fewer, none = edges.only(KEPT), edges.only(np.zeros(4, dtype=bool))
    assert_array_equal(fewer.ends, ENDS[KEPT])
    operands = np.array([[0] * 4, [1, 0, 0, 0], [0, 1, 0, 0], [0] * 4])
    expected = operands if directions == "separate" else (operands + operands.T) / np.array([[1], [2], [1], [1]])
    assert_array_equal(matrices(fewer, Norm.MEAN, directions)[1], expected)
    assert_array_equal(matrices(none, Norm.MEAN, directions)[1], np.zeros((4, 4)))
    assert_array_equal(none.neighbourhood(EdgeKind(Norm.SYMMETRIC, directions)).weight, np.ones(4))


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("directions", BOTH)
def test_each_node_receives_from_itself_first_and_then_by_type(
    norm: Norm, directions: Directions, edges: Edges
) -> None:
    starts, source, edge_type, weight, hashes = edges.neighbourhood(EdgeKind(norm, directions))
    assert_array_equal(np.diff(starts), [3, 4, 4, 1])  # the node itself, and its neighbours
    assert_array_equal(source[starts[:-1]], np.arange(4))
    for types in np.split(edge_type, starts[1:-1]):
        assert_array_equal(types, sorted(types))
        assert_array_equal(types == 0, np.arange(len(types)) == 0)
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


@settings(max_examples=25)
@given(
    nodes=st.integers(16, 60),
    max_nodes=st.integers(4, 20),
    algorithm=st.sampled_from(["topological", "metis"]),
    halo=st.integers(0, 2),
    block=st.sampled_from(
        [["sage", "gelu", "residual"], ["gatv2", "sage"], ["gcn", "dropout"], ["reproductions:EdgeMlp"], ["linear"]]
    ),
    join=st.sampled_from(["early", "late", "every"]),
    compress=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_stacked_segments_have_the_embeddings_that_they_have_alone(
    nodes: int,
    max_nodes: int,
    algorithm: str,
    halo: int,
    block: list[str],
    join: str,
    compress: bool,
    seed: int,
    make_model: MakeModel,
    make_features: Callable[..., GraphFeatures],
) -> None:
    features, rng = make_features(nodes=nodes, seed=seed, dtype=np.float64), np.random.default_rng(seed)
    cut = partition_graph(features, PartitionConfig(algorithm=algorithm, max_nodes=max_nodes, halo=halo))
    graph = GraphInputs(features, cut)
    model = make_model(block=block, join=join, pooling=list(POOLINGS), dropout=0.0).eval()
    recipe = replace(model.recipe, compress=compress)
    chosen = rng.permutation(cut.segments)[: rng.integers(1, cut.segments + 1)].tolist()
    rows = {j: rng.choice(features.distinct, size=rng.integers(1, 5), replace=False) for j in chosen}
    kept = {j: rng.random(len(graph.segments[j].edges)) < 0.7 for j in chosen}
    together = model(PackedPlan(graph.plan(rows, recipe, np.concatenate([*kept.values()]))).unpack())
    together = together.view(len(chosen), -1, model.embedding_width)
    own = [embedding[: len(rows[j])] for j, embedding in zip(chosen, together, strict=True)]
    alone = [model(PackedPlan(graph.plan({j: rows[j]}, recipe, kept[j])).unpack()) for j in chosen]
    torch.testing.assert_close(own, alone, rtol=1e-9, atol=1e-12)
    towards = [sum(one.square().sum() for one in some) for some in (own, alone)]
    gradients = [torch.autograd.grad(total, list(model.parameters()), materialize_grads=True) for total in towards]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)


def test_stacked_segments_share_what_is_equal(make_inputs: MakeInputs, make_model: MakeModel) -> None:
    graph, recipe, rows = make_inputs(segments=4), make_model().recipe, np.arange(5)
    joined = stack(list(graph.segments))
    assert stack([graph.segments[1]]) is graph.segments[1]
    assert sorted(joined.node_ids.tolist()) == list(range(joined.nodes))
    assert_array_equal(graph.partition.segment_of[joined.node_ids], joined.part)
    assert len(np.unique(joined.initial_colour)) == len(joined.colours) == len(joined.colour_numeric)
    for k in range(4):
        assert joined.k_hop_prefix(k) == sum(segment.k_hop_prefix(k) for segment in graph.segments)
    together = graph.plan(dict.fromkeys(range(4), rows), recipe).states
    assert together <= sum(graph.plan({j: rows}, recipe).states for j in range(4))
