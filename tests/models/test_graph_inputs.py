"""Graphs as inputs: known segments, equal colours exactly for equal states, stacked segments."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import Directions, PartitionConfig
from hlorank.files import DataError
from hlorank.models.compression.build_plan import dense_states
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import EdgeKind, Norm
from hlorank.models.compression.plan import QuotientGraph
from hlorank.models.compression.segment import Edges, LayoutBatch, Neighbourhood
from hlorank.models.cost_model import POOLINGS
from hlorank.models.graph_inputs import GraphInputs, GraphLoader
from hlorank.models.plan_tensors import PackedPlan
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition, local_codes
from tests.graphs import layout_features, make_features, make_inputs, make_model
from tests.models.dense_form import RANDOM, colouring_of


def make_known(**changes: Any) -> GraphInputs:
    """Make six nodes in the segments {0, 2, 5} and {1, 3, 4}; 2, 3 and 5 are configurable."""
    layouts = layout_features(
        np.array([2, 3, 5]),
        np.arange(36).reshape(2, 18).astype(np.int8),
        np.arange(36, 72).reshape(2, 18).astype(np.float32),
        np.array([[0, 1, 1], [1, 0, 0]], np.uint8),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    )
    edges = np.array([[1, 0], [2, 0], [3, 1], [4, 1], [4, 3], [5, 2], [5, 4]])
    graph = make_features(nodes=6, distinct=2)
    features = replace(graph, configurations=layouts, edge_index=edges, **changes)
    segment_of = np.array([0, 1, 0, 1, 1, 0], dtype=np.int32)
    return GraphInputs(features, Partition(segment_of, local_codes(layouts, segment_of)))


def test_configurable_nodes_come_first() -> None:
    expected = [([2, 5, 0], [2, 3], [0, 2]), ([3, 1, 4], [1, 3], [1])]
    for segment, (nodes, prefixes, columns) in zip(make_known().segments, expected, strict=True):
        assert (segment.node_ids.tolist(), [*segment.hop_prefixes]) == (nodes, prefixes)
        assert segment.config_columns.tolist() == columns


def test_initial_colours_are_equal_features() -> None:
    feat = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [1.0, 2.0]])
    opcode, layout = np.array([7, 7, 8, 7, 7, 7], dtype=np.uint8), np.zeros((6, 6), dtype=np.int8)
    layout[5, 5] = 1
    graph = make_known(node_feat=feat, opcode=opcode, node_layout=layout)
    assert [segment.initial_colour.tolist() for segment in graph.segments] == [[1, 2, 0], [1, 0, 0]]


def test_a_segment_gets_its_own_part_of_the_codebook() -> None:
    """Node 3 has row 1 of the codebook in configuration 0; the other row is not embedded."""
    graph = make_known()
    batch = graph.configurations(np.array([[0]]), graph.segments[1])
    assert isinstance(batch, LayoutBatch)
    assert (batch.codes.tolist(), batch.costs.tolist()) == ([[0]], [[3, 4, 5]])
    assert (batch.codebook.tolist(), batch.sizes.tolist()) == ([[*range(18, 36)]], [[*range(54, 72)]])


def test_a_partition_is_that_of_the_opened_graph(graphs: GraphLoader, tiny_collections: Path) -> None:
    (name, *_) = graphs.store.graphs("train")
    partition, opened = graphs.open_partition("train", name), graphs.open("train", name)
    assert partition is not None
    assert partition.segments == len(opened.segments) > 1
    np.testing.assert_array_equal(partition.segment_of, opened.partition.segment_of)
    whole = GraphLoader(graphs.store.root, None)
    assert whole.open_partition("train", name) is None
    assert len({whole.fingerprint, graphs.fingerprint, whole.store.fingerprint}) == 3
    with pytest.raises(DataError, match="partition"):
        GraphLoader(tiny_collections / "features/tile/synthetic", tiny_collections / "segments/layout/synthetic/random")


def received(colouring: Colouring, neighbourhood: Neighbourhood) -> dict[tuple[int, int], object]:
    """Return the edge types, weights and colours that each node receives under each configuration, sorted."""
    starts, source, edge_type, weight, *_ = neighbourhood
    result: dict[tuple[int, int], object] = {}
    for node, (start, stop) in enumerate(pairwise(starts.tolist())):
        edges = edge_type[start:stop].tolist(), weight[start:stop].round(12).tolist()
        for configuration, colours in enumerate(colouring.colour_of[source[start:stop]].T.tolist()):
            result[node, configuration] = tuple(sorted(zip(*edges, colours, strict=True)))
    return result


@settings(max_examples=25)
@given(
    graph=st.fixed_dictionaries(RANDOM),
    share=st.booleans(),
    norm=st.sampled_from(Norm),
    directions=st.sampled_from(get_args(Directions)),
)
def test_states_share_a_colour_exactly_if_they_receive_the_same(
    graph: dict[str, int], share: bool, norm: Norm, directions: Directions
) -> None:
    for segment in make_inputs(**graph).segments:
        colouring = colouring_of(segment, 4, share)
        neighbourhood = segment.edges.neighbourhood(EdgeKind(norm, directions))
        for hops in range(1, 4):
            before, colour_of = colouring, dict[object, int]()
            colouring = before.refine(neighbourhood, segment.k_hop_prefix(hops))
            for (node, c), same in received(before, neighbourhood).items():
                assert colour_of.setdefault(same, colouring.colour_of[node, c]) == colouring.colour_of[node, c]
            assert len(colour_of) == len(colouring)
            assert (colouring.roots(before)[colouring.colour_of] == before.colour_of).all()
            assert colouring.colour_of[colouring.node, colouring.configuration].tolist() == list(range(len(colouring)))
            if before.is_identity:
                break


def test_the_work_is_the_states_of_layers_that_mix() -> None:
    model, graph = make_model(block=["layer_norm", "sage", "gelu"], blocks=2), make_inputs()
    plan = graph.plan({0: np.arange(5)}, model.recipe)
    graphs = [index for index in plan.steps if isinstance(index, QuotientGraph)]
    assert plan.states == sum(len(index.matrix.row_starts) for index in graphs)
    dense = graph.plan({0: np.arange(5)}, replace(model.recipe, compress=False))
    assert dense.states == 2 * 24 * 5 == dense_states(model.recipe, graph.segments[0], 5)
    assert plan.states < dense.states


def test_degrees_count_the_kept_edges_alone() -> None:
    edges = Edges(np.array([[1, 0], [2, 0], [2, 1], [2, 1]]), nodes=4, configurable=2)
    kept = edges.only(np.array([True, False, True, False])).neighbourhood(EdgeKind(Norm.MEAN, "shared"))
    assert kept.source.tolist() == [0, 1, 1, 0, 2, 2, 1, 3]
    assert kept.weight.tolist() == [1, 1, 1, 0.5, 0.5, 1, 1, 1]


@settings(max_examples=25)
@given(
    nodes=st.integers(16, 60),
    max_nodes=st.integers(4, 20),
    algorithm=st.sampled_from(["topological", "metis"]),
    block=st.sampled_from(
        [["sage", "gelu", "residual"], ["gatv2", "sage"], ["gcn", "dropout"], ["reproductions:EdgeMlp"], ["linear"]]
    ),
    join=st.sampled_from(["early", "late", "every"]),
    compress=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_stacked_segments_have_the_embeddings_that_they_have_alone(
    nodes: int, max_nodes: int, algorithm: str, block: list[str], join: str, compress: bool, seed: int
) -> None:
    features, rng = make_features(nodes=nodes, seed=seed, dtype=np.float64), np.random.default_rng(seed)
    cut = partition_graph(features, PartitionConfig(algorithm=algorithm, max_nodes=max_nodes))
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


def test_stacked_segments_share_what_is_equal() -> None:
    graph, recipe, rows = make_inputs(segments=4), make_model().recipe, np.arange(5)
    joined = graph.segments.stacked(range(4))
    assert graph.segments.stacked([1]) is graph.segments[1]
    assert len(np.unique(joined.initial_colour)) == len(joined.colour_numeric)
    for k in range(4):
        assert joined.k_hop_prefix(k) == sum(segment.k_hop_prefix(k) for segment in graph.segments)
    together = graph.plan(dict.fromkeys(range(4), rows), recipe).states
    assert together <= sum(graph.plan({j: rows}, recipe).states for j in range(4))
