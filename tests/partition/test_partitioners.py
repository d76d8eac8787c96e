"""Partition of one graph by every partitioner, on random and real graphs."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from hlorank.config import PartitionConfig
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures, distinct_rows
from hlorank.files import DataError
from hlorank.partition.partitioners import PARTITIONERS, partition_graph
from hlorank.partition.segment_store import segment_rows
from hlorank.partition.segments import Partition, whole_graph
from tests.graphs import layout_features, make_features

algorithms = st.sampled_from(sorted(PARTITIONERS))


def cut(features: GraphFeatures, algorithm: str, max_nodes: int) -> Partition:
    return partition_graph(features, PartitionConfig(algorithm=algorithm, max_nodes=max_nodes))


def layouts_of(node_ids: np.ndarray, codes: np.ndarray) -> LayoutFeatures:
    """Make configurations of the given codes; the rows of the codebook do not matter."""
    rows = int(codes.max()) + 1
    return layout_features(node_ids, np.zeros((rows, 18), np.int8), np.zeros((rows, 18), np.float32), codes)


def features_of(
    nodes: int, edges: ArrayLike, splits: list[int], configurations: LayoutFeatures | TileFeatures | None = None
) -> GraphFeatures:
    """Make features of a graph; those that a partition does not depend on are random."""
    if configurations is None:
        configurations = layouts_of(np.zeros(1, np.int64), np.zeros((1, 1), np.uint8))
    distinct = len(configurations.codes if isinstance(configurations, LayoutFeatures) else configurations.feat)
    return replace(
        make_features(nodes=nodes, distinct=1),
        edge_index=np.array(edges, dtype=np.int64).reshape(-1, 2),
        node_splits=np.array(splits, dtype=np.int64),
        configurations=configurations,
        row_of=np.arange(distinct),
        runtime=np.ones(distinct, dtype=np.int64),
        normalizer=None if isinstance(configurations, LayoutFeatures) else np.ones(distinct, dtype=np.int64),
    )


@st.composite
def graphs(draw: st.DrawFn) -> GraphFeatures:
    """Draw DAGs in topological order, connected or not, with blocks and distinct configurations."""
    n = draw(st.integers(1, 40))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(lambda pair: (max(pair), min(pair)))
    edges = [edge for edge in draw(st.lists(pairs, max_size=3 * n)) if edge[0] != edge[1]]
    splits = sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=8))})
    node_ids = np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=8))))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    codes = rng.integers(0, 3, size=(draw(st.integers(1, 30)), len(node_ids))).astype(np.uint8)
    codes = codes[distinct_rows(codes)[0]]
    return features_of(n, edges, splits, layouts_of(node_ids, codes))


@given(graphs(), algorithms, st.integers(1, 50))
@settings(max_examples=100)
def test_segments_and_codes_of_graphs(features: GraphFeatures, algorithm: str, max_nodes: int) -> None:
    """Every node is in one segment of bounded size; equal codes are equal layouts."""
    partition, layouts = cut(features, algorithm, max_nodes), features.configurations
    assert isinstance(layouts, LayoutFeatures)
    sizes = np.bincount(partition.segment_of)
    assert partition.segment_of.shape == (features.nodes,)
    assert 1 <= sizes.min() <= sizes.max() <= max_nodes
    first = np.unique(partition.segment_of, return_index=True)[1]
    assert (np.diff(first) > 0).all()
    if features.nodes <= max_nodes:
        np.testing.assert_array_equal(partition.local_codes, whole_graph(features).local_codes)
    assert (partition.local_codes.shape, partition.local_codes.itemsize) == ((features.distinct, len(sizes)), 1)
    assert partition.segment_of.dtype == np.int32
    for j in range(partition.segments):
        own = np.flatnonzero(partition.segment_of == j)
        assert partition.inner[j].tolist() == own.tolist()
        local, codes = layouts.codes[:, np.isin(layouts.node_ids, own)], partition.local_codes[:, j]
        same = (local[:, None] == local[None, :]).all(axis=2)
        np.testing.assert_array_equal(codes[:, None] == codes[None, :], same)
        appeared = codes[np.sort(np.unique(codes, return_index=True)[1])]
        np.testing.assert_array_equal(appeared, np.arange(partition.local_counts[j]))


@given(graphs(), st.integers(1, 50))
@settings(max_examples=60)
def test_topological_segments_are_few_and_computation_cuts_no_block(features: GraphFeatures, max_nodes: int) -> None:
    segment_of = cut(features, "topological", max_nodes).segment_of
    sizes = np.bincount(segment_of)
    assert (np.diff(segment_of) >= 0).all()
    assert sizes.max() - sizes.min() <= 1
    assert len(sizes) == -(-features.nodes // max_nodes)
    segment_of = cut(features, "computation", max_nodes).segment_of
    assert (np.diff(segment_of) >= 0).all()
    blocks = list(pairwise(features.node_splits.tolist()))
    for start, stop in blocks:
        inside = np.unique(segment_of[start:stop])
        assert len(inside) == -(-(stop - start) // max_nodes)
        if stop - start > max_nodes:
            assert not np.isin(inside, np.delete(segment_of, np.arange(start, stop))).any()
    for (start, middle), (_, stop) in pairwise(blocks):
        if segment_of[middle - 1] != segment_of[middle]:  # only because they do not fit together
            left = np.count_nonzero(segment_of == segment_of[start])
            assert max(left, middle - start) + stop - middle > max_nodes


def test_metis_follows_the_edges() -> None:
    """Two chains whose nodes alternate: METIS separates them, a topological cut cannot."""
    features = features_of(40, [(i, i - 2) for i in range(2, 40)], [0, 40])
    assert cut(features, "metis", 25).segment_of.tolist() == [0, 1] * 20


def test_local_codes_take_the_smallest_type() -> None:
    codes = np.array([[i % 256, i // 256] for i in range(300)], dtype=np.uint16)
    features = features_of(4, [], [0, 4], layouts_of(np.array([0, 3]), codes))
    for max_nodes, bytes_each, counts in ((2, 1, [256, 2]), (4, 2, [300])):
        partition = cut(features, "topological", max_nodes)
        assert (partition.local_codes.itemsize, partition.local_counts.tolist()) == (bytes_each, counts)


def test_tile_kernels_remain_whole() -> None:
    features = features_of(4, [(3, 0)], [0, 4], TileFeatures(np.zeros((3, 2), dtype=np.float32)))
    partition = cut(features, "topological", 2)
    assert partition.segment_of.tolist() == [0, 0, 0, 0]
    assert partition.local_codes.tolist() == [[0], [1], [2]]


def test_labels_of_a_partitioner_may_skip_numbers_and_exceed_max_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([7, 7, 7, 7, 2, 2, 2, 9, 9, 0], dtype=np.int64)
    monkeypatch.setitem(PARTITIONERS, "fixed", lambda features, max_nodes: labels)
    assert cut(features_of(10, [], [0, 10]), "fixed", 3).segment_of.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_local_codes_of_a_known_graph() -> None:
    codes = np.array([[0, 0], [0, 1], [1, 0]], dtype=np.uint8)
    layouts = layouts_of(np.array([0, 2]), codes)
    features = features_of(5, [(1, 0), (2, 1), (3, 1), (4, 3), (4, 2)], [0, 5], layouts)
    partition = cut(features, "topological", 2)
    assert partition.segment_of.tolist() == [0, 0, 1, 1, 2]
    assert partition.local_codes.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    rows = segment_rows("valid", features, partition)
    assert rows.to_csv(index=False).splitlines() == [
        "split,graph,segment,nodes,inner_edges,cut_edges,configurable_nodes,local_configurations,configurations",
        "valid,graph,0,2,1,2,1,2,3",
        "valid,graph,1,2,0,4,1,2,3",
        "valid,graph,2,1,0,2,0,1,3",
    ]


@pytest.fixture(scope="module")
def unet_3d(shared_data: Path) -> GraphFeatures:
    measured = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz", "layout")
    graph, layouts = measured.graph, measured.configurations
    assert isinstance(layouts, LayoutConfigurations)
    configurations = layouts_of(layouts.node_ids, layouts.codes[distinct_rows(layouts.codes)[0]])
    return features_of(graph.nodes, graph.edge_index, graph.node_splits.tolist(), configurations)


@pytest.mark.parametrize(
    ("algorithm", "sizes", "edges", "local"),
    [
        ("topological", [452] * 6 + [451], 1585, [2, 8, 194, 105, 30, 160, 184]),
        ("computation", [498, 4, 444, 443, 444, 443, 444, 443], 1591, [2, 1, 8, 194, 105, 30, 63, 184]),
        ("metis", [451] + [452] * 6, 668, [12, 30, 341, 420, 30, 30, 4]),
    ],
)
def test_unet_3d(unet_3d: GraphFeatures, algorithm: str, sizes: list[int], edges: int, local: list[int]) -> None:
    rows = segment_rows("valid", unet_3d, cut(unet_3d, algorithm, 500))
    assert rows["nodes"].tolist() == sizes
    totals = rows[["cut_edges", "inner_edges", "configurable_nodes"]].sum().tolist()
    assert totals == [2 * edges, 5112 - edges, 62]
    assert rows["local_configurations"].tolist() == local
    assert {*rows["configurations"]} == {1469}


@pytest.mark.parametrize("segment_of", [[0, -1, 1, 1], [0, 0, 2, 1], [0, 0, 0, 0]])
def test_impossible_segments_are_refused(segment_of: list[int]) -> None:
    with pytest.raises(DataError, match="segment_of: "):
        Partition(np.array(segment_of, np.int32), np.zeros((1, 2), np.uint8))
