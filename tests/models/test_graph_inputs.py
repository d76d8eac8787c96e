"""Graphs as inputs: segments of a known graph, their configurations, and the check that segments fit features."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.files import DataError
from hlorank.models.compression.declarations import EdgeKind, Norm
from hlorank.models.compression.segment import LayoutBatch, Segment, TileBatch
from hlorank.models.graph_inputs import GraphInputs, GraphLoader
from hlorank.partition.segments import Partition, halo_rows, local_codes, no_halo
from tests.layouts import layout_features


@pytest.fixture
def known(make_features: Callable[..., GraphFeatures]) -> GraphInputs:
    """Six nodes in the segments {0, 2, 5} and {1, 3, 4}; 2, 3 and 5 are configurable."""
    layouts = layout_features(
        np.array([2, 3, 5]),
        np.arange(36).reshape(2, 18).astype(np.int8),
        np.arange(36, 72).reshape(2, 18).astype(np.float32),
        np.array([[0, 1, 1], [1, 0, 0]], np.uint8),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    )
    edges = np.array([[1, 0], [2, 0], [3, 1], [4, 1], [4, 3], [5, 2], [5, 4]])
    features = replace(make_features(nodes=6, distinct=2), configurations=layouts, edge_index=edges)
    segment_of = np.array([0, 1, 0, 1, 1, 0], dtype=np.int32)
    return GraphInputs(features, Partition(segment_of, local_codes(layouts, segment_of, no_halo())))


def received(segment: Segment) -> list[list[tuple[int, int, float]]]:
    """Return for each node the edge type, the source and the weight of what it receives, sorted."""
    edges = segment.edges.neighbourhood(EdgeKind(Norm.MEAN, "separate"))
    parts = (edges.edge_type.tolist(), edges.source.tolist(), edges.weight.tolist())
    return [
        sorted(zip(*(part[start:stop] for part in parts), strict=True))
        for start, stop in itertools.pairwise(edges.starts)
    ]


def directed(segment: Segment) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (node, neighbour) of every edge to operands, and the same for users."""
    operands, users = (
        [(node, source) for node, edges in enumerate(received(segment)) for kind, source, _ in edges if kind == wanted]
        for wanted in (1, 2)
    )
    return operands, users


def test_segments_of_a_known_graph(known: GraphInputs) -> None:
    first, second = known.segments
    # Configurable nodes first, then the others by their distance from them.
    assert (first.node_ids.tolist(), second.node_ids.tolist()) == ([2, 5, 0], [3, 1, 4])
    assert (list(first.hop_prefixes), list(second.hop_prefixes)) == ([2, 3], [1, 3])
    for segment, nodes in ((first, [2, 5, 0]), (second, [3, 1, 4])):
        colour = segment.initial_colour
        np.testing.assert_array_equal(segment.colour_numeric[colour], known.features.node_feat[nodes])
        np.testing.assert_array_equal(segment.colour_opcode[colour], known.features.opcode[nodes])
        np.testing.assert_array_equal(segment.colour_layout[colour], known.features.node_layout[nodes])
    assert first.colour_opcode.dtype == first.colour_layout.dtype == np.int64
    assert first.nodes == 3
    # Only the edges 2 <- 0, 5 <- 2 and 3 <- 1, 4 <- 1, 4 <- 3 are inside a segment.
    (first_operands, first_users), (second_operands, second_users) = directed(first), directed(second)
    assert first_operands == [(0, 2), (1, 0)]
    assert first_users == [(0, 1), (2, 0)]
    assert sorted(second_operands) == [(0, 1), (2, 0), (2, 1)]
    assert sorted(second_users) == [(0, 2), (1, 0), (1, 2)]
    assert (first.config_columns.tolist(), second.config_columns.tolist()) == ([0, 2], [1])


def test_initial_colours_are_equal_features(known: GraphInputs) -> None:
    features = known.features
    feat = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [1.0, 2.0]])
    opcode, layout = np.array([7, 7, 8, 7, 7, 7], dtype=np.uint8), np.zeros((6, 6), dtype=np.int8)
    layout[5, 5] = 1
    changed = GraphInputs(replace(features, node_feat=feat, opcode=opcode, node_layout=layout), known.partition)
    equals = [
        [segment.node_ids[segment.initial_colour == colour].tolist() for colour in segment.initial_colour]
        for segment in changed.segments
    ]
    assert [segment.node_ids.tolist() for segment in changed.segments] == [[2, 5, 0], [3, 1, 4]]
    assert equals == [[[2], [5], [0]], [[3], [1, 4], [1, 4]]]


def test_a_segment_gets_its_own_part_of_a_configuration(known: GraphInputs) -> None:
    first, second = known.segments
    batch = known.configurations(np.array([[1, 0, 1]]), first)
    assert isinstance(batch, LayoutBatch)
    assert len(batch) == 3
    assert batch.codes.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert batch.codebook.tolist() == np.arange(36).reshape(2, 18).tolist()
    assert batch.sizes.tolist() == np.arange(36, 72).reshape(2, 18).tolist()
    assert batch.moves.tolist() == [[0, 1, 2], [3, 4, 5]]
    # Node 3 has row 1 of the codebook there; the other row is not embedded.
    other = known.configurations(np.array([[0]]), second)
    assert isinstance(other, LayoutBatch)
    assert other.codes.tolist() == [[0]]
    assert other.codebook.tolist() == [list(range(18, 36))]
    assert other.sizes.tolist() == [list(range(54, 72))]
    assert other.moves.tolist() == [[3, 4, 5]]
    dtypes = [array.dtype for array in (other.codebook, other.sizes, other.moves, other.codes)]
    assert dtypes == [np.int64, np.float32, np.float32, np.int64]


def test_a_halo_is_computed_and_not_pooled(known: GraphInputs) -> None:
    layouts = known.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    segment_of = known.partition.segment_of
    halo = halo_rows(known.features, segment_of, 1)
    graph = GraphInputs(known.features, Partition(segment_of, local_codes(layouts, segment_of, halo), halo))
    first, second = graph.segments
    # Nodes 1 and 4 of the other segment are next to 0 and 5, and 0 and 5 next to 1 and 4.
    assert (first.node_ids.tolist(), second.node_ids.tolist()) == ([2, 5, 0, 4, 1], [3, 5, 1, 4, 0])
    assert first.pooled is not None
    assert second.pooled is not None
    assert first.pooled.tolist() == [True, True, True, False, False]
    assert second.pooled.tolist() == [True, False, True, True, False]
    assert (list(first.hop_prefixes), list(second.hop_prefixes)) == ([2, 4, 5], [2, 4, 5])
    assert (first.config_columns.tolist(), second.config_columns.tolist()) == ([0, 2], [1, 2])
    operands, users = directed(first)
    # Edges among all rows are kept: 1 <- 0, 2 <- 0, 4 <- 1, 5 <- 2, 5 <- 4 in the first segment.
    assert sorted(operands) == [(0, 2), (1, 0), (1, 3), (3, 4), (4, 2)]
    assert sorted(users) == [(0, 1), (2, 0), (2, 4), (3, 1), (4, 3)]
    # Node 4 has the operands 1 and 3 in the graph, of which 3 is outside; node 1 the users 3 and 4.
    weights = [
        [weight for edges in received(first) for kind, _, weight in edges if kind == wanted] for wanted in (1, 2)
    ]
    assert weights == [[1, 0.5, 0.5, 0.5, 1], [1, 0.5, 0.5, 1, 0.5]]
    assert known.segments[0].pooled is None


def test_each_node_and_inner_edge_is_in_one_segment(make_inputs: Callable[..., GraphInputs]) -> None:
    cut = make_inputs(segments=4, nodes=40)
    whole = make_inputs(segments=1, nodes=40)
    assert sum(segment.nodes for segment in cut.segments) == 40
    inner = cut.partition.segment_of[cut.features.edge_index]
    expected = int((inner[:, 0] == inner[:, 1]).sum())
    assert 0 < expected < len(cut.features.edge_index)
    assert sum(len(segment.edges) for segment in cut.segments) == expected
    assert sorted(np.concatenate([segment.config_columns for segment in cut.segments])) == list(range(10))
    assert len(whole.segments[0].edges) == len(cut.features.edge_index)


def test_tiles(make_inputs: Callable[..., GraphInputs]) -> None:
    graph = make_inputs(kind="tile", dtype=np.float32)
    batch = graph.configurations(np.array([[3, 3, 0]]), graph.segments[0])
    assert isinstance(batch, TileBatch)
    assert len(batch) == 3
    assert isinstance(graph.features.configurations, TileFeatures)
    np.testing.assert_array_equal(batch.feat, graph.features.configurations.feat[[3, 3, 0]])
    assert batch.feat.dtype == np.float32
    assert graph.segments[0].k_hop_prefix(0) == 24, "every node of a kernel depends on its tile"


def test_a_partition_is_that_of_the_opened_graph(tiny_collections: Path) -> None:
    path = "layout/synthetic/random"
    segments = tiny_collections / "segments" / path
    graphs = GraphLoader(tiny_collections / "features" / path, segments)
    (name, *_) = graphs.store.graphs("train")
    partition, opened = graphs.open_partition("train", name), graphs.open("train", name)
    assert partition is not None
    assert partition.segments == len(opened.segments) > 1
    np.testing.assert_array_equal(partition.segment_of, opened.partition.segment_of)
    whole = GraphLoader(graphs.store.root, None)
    assert whole.open_partition("train", name) is None
    assert len({whole.fingerprint, graphs.fingerprint, whole.store.fingerprint}) == 3
    with pytest.raises(DataError, match="partition"):
        GraphLoader(tiny_collections / "features/tile/synthetic", segments)
