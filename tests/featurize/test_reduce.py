"""Reduction around configurable nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import FeaturizeConfig
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.graph import Graph, Int64
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE
from hlorank.featurize.paths import connecting_paths, distances
from hlorank.featurize.reduce import Reduction, reduction
from tests.sections import featurize_config

MakeGraph = Callable[..., MeasuredGraph]

PLAIN = featurize_config()
ONE = PLAIN.model_copy(update={"prune_hops": 1})
EDGES = ONE.model_copy(update={"prune_edges": True})
PATHS = PLAIN.model_copy(update={"prune_paths": True})


def layouts(graph: Graph, node_ids: list[int] | Int64) -> MeasuredGraph:
    """Return the graph with one configuration of the given nodes."""
    values = np.full((1, len(node_ids), 18), -1)
    parts = LayoutConfigurations.from_chunks(np.array(node_ids, dtype=np.int64), [values])
    return MeasuredGraph("graph", graph, parts, Measurements(np.array([1000])))


def graph_of(nodes: int, edges: list[tuple[int, int]], splits: list[int]) -> Graph:
    """Make a graph whose first feature is the number of the node plus 1."""
    feat = np.zeros((nodes, 140), dtype=np.float32)
    feat[:, 0] = np.arange(1, nodes + 1)
    rows = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return Graph(feat, np.arange(1, nodes + 1).astype(np.uint8), rows, np.array(splits))


def chain(nodes: int) -> Graph:
    """Make a chain in which each node consumes the previous one, in two blocks of equal size."""
    return graph_of(nodes, [(node, node - 1) for node in range(1, nodes)], [0, nodes // 2, nodes])


def again(graph: Graph, reduced: Reduction) -> Graph:
    """Return the reduced graph as a graph that can be reduced."""
    opcode = np.where(reduced.virtual, 0, reduced.opcode).astype(np.uint8)
    return Graph(reduced.sums(graph.node_feat), opcode, reduced.edge_index, reduced.node_splits)


@st.composite
def measured_graphs(draw: st.DrawFn) -> MeasuredGraph:
    nodes = draw(st.integers(2, 40))
    pairs = st.tuples(st.integers(1, nodes - 1), st.integers(0, nodes - 2)).filter(lambda pair: pair[0] > pair[1])
    edges = draw(st.lists(pairs, max_size=2 * nodes))
    splits = draw(st.sets(st.integers(1, nodes - 1), max_size=4))
    node_ids = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=4))
    return layouts(graph_of(nodes, edges, sorted({0, nodes} | splits)), sorted(node_ids))


options_that_reduce = st.builds(
    featurize_config,
    prune_hops=st.integers(0, 3),
    prune_paths=st.booleans(),
    virtual_nodes=st.booleans(),
    prune_edges=st.booleans(),
)


def test_other_nodes_of_a_chain_are_left_out() -> None:
    reduced = reduction(layouts(chain(10), [7]), PLAIN.model_copy(update={"prune_hops": 2}))
    assert reduced.first.tolist() == [5, 6, 7, 8, 9]
    assert reduced.node_of.tolist() == [-1] * 5 + [0, 1, 2, 3, 4]
    assert reduced.merged.tolist() == [1] * 5
    assert reduced.opcode.tolist() == [6, 7, 8, 9, 10]
    assert reduced.edge_index.tolist() == [[1, 0], [2, 1], [3, 2], [4, 3]]
    assert reduced.node_splits.tolist() == [0, 5]  # the first block is empty and vanishes


def test_other_nodes_of_a_chain_become_virtual_nodes() -> None:
    reduced = reduction(layouts(chain(10), [7]), ONE.model_copy(update={"virtual_nodes": True}))
    # 0 to 4 end with their block; 5 and 9 are alone and unchanged.
    assert reduced.first.tolist() == [0, 5, 6, 7, 8, 9]
    assert reduced.merged.tolist() == [5, 1, 1, 1, 1, 1]
    assert reduced.node_of.tolist() == [0] * 5 + [1, 2, 3, 4, 5]
    assert reduced.opcode.tolist() == [VIRTUAL_OPCODE, 6, 7, 8, 9, 10]
    assert reduced.edge_index.tolist() == [[1, 0], [2, 1], [3, 2], [4, 3], [5, 4]]
    assert reduced.node_splits.tolist() == [0, 1, 6]
    assert reduced.sums(chain(10).node_feat)[:, 0].tolist() == [15, 6, 7, 8, 9, 10]


def test_edges_of_merged_nodes_by_hand() -> None:
    edges = [(2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 1), (6, 3), (6, 4), (6, 5), (7, 6), (7, 0)]
    measured = layouts(graph_of(8, edges, [0, 8]), [3])
    assert reduction(measured, ONE).edge_index.tolist() == [[1, 0], [2, 1]]
    reduced = reduction(measured, ONE.model_copy(update={"virtual_nodes": True}))
    # 0 and 1 are merged, and so are 4 and 5; they have no common edge, as 2 and 3 are between them.
    assert reduced.node_of.tolist() == [0, 0, 1, 2, 3, 3, 4, 5]
    assert reduced.edge_index.tolist() == [[1, 0], [2, 1], [3, 0], [3, 1], [4, 2], [4, 3], [5, 0], [5, 4]]


def test_only_edges_that_touch_configurable_nodes() -> None:
    edges = [(2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 1), (6, 3), (6, 4), (6, 5), (7, 6), (7, 0)]
    measured = layouts(graph_of(8, edges, [0, 8]), [2])
    assert reduction(measured, ONE).edge_index.tolist() == [[2, 0], [2, 1], [3, 2], [4, 0], [4, 2]]
    reduced = reduction(measured, EDGES)
    assert reduced.first.tolist() == [0, 1, 2, 3, 4]
    assert reduced.edge_index.tolist() == [[2, 0], [2, 1], [3, 2], [4, 2]]  # not that from 0, an operand of 2, to 4
    whole = reduction(measured, PLAIN.model_copy(update={"prune_edges": True}))
    assert whole.edge_index.tolist() == reduced.edge_index.tolist()
    assert len(whole.first) == 8


def test_paths_are_kept_in_addition_to_hops() -> None:
    measured = layouts(chain(12), [2, 6])
    assert reduction(measured, PATHS).first.tolist() == [2, 3, 4, 5, 6]
    assert reduction(measured, ONE.model_copy(update={"prune_paths": True})).first.tolist() == [1, 2, 3, 4, 5, 6, 7]
    merged = reduction(measured, PATHS.model_copy(update={"virtual_nodes": True}))
    assert merged.merged.tolist() == [2, 1, 1, 1, 1, 1, 5]


@given(measured_graphs(), options_that_reduce)
@settings(deadline=None, max_examples=100)
def test_kept_and_merged_nodes(measured: MeasuredGraph, options: FeaturizeConfig) -> None:
    graph, configurations = measured.graph, measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    assert options.prune_hops is not None
    reduced = reduction(measured, options)
    distance = distances(graph.edge_index, graph.nodes, configurations.node_ids)
    keep = (distance >= 0) & (distance <= options.prune_hops)
    if options.prune_paths:
        keep |= connecting_paths(graph, configurations.node_ids, distance)
    kept_edges = np.isin(graph.edge_index, configurations.node_ids).any(axis=1) | (not options.prune_edges)

    # No kept node is merged, and without virtual nodes only kept nodes remain.
    assert (reduced.merged[reduced.node_of[keep]] == 1).all()
    assert (reduced.first[reduced.node_of[keep]] == np.flatnonzero(keep)).all()
    if not options.virtual_nodes:
        assert reduced.first.tolist() == np.flatnonzero(keep).tolist()
        assert (reduced.node_of[~keep] == -1).all()
        inside = keep[graph.edge_index].all(axis=1) & kept_edges
        assert reduced.first[reduced.edge_index].tolist() == graph.edge_index[inside].tolist()
        return

    # Every node is in a reduced node, in the same order, and virtual nodes are as long as possible.
    assert reduced.merged.sum() == graph.nodes
    assert (np.diff(reduced.node_of) >= 0).all()
    block = np.searchsorted(graph.node_splits, np.arange(graph.nodes), side="right")
    for node in range(1, graph.nodes):
        together = not keep[node] and not keep[node - 1] and block[node] == block[node - 1]
        assert (reduced.node_of[node] == reduced.node_of[node - 1]) == together
    assert {tuple(edge) for edge in reduced.node_of[graph.edge_index[kept_edges]] if edge[0] != edge[1]} == {
        tuple(edge) for edge in reduced.edge_index
    }


@given(measured_graphs(), options_that_reduce)
@settings(deadline=None, max_examples=100)
def test_the_result_is_a_graph_in_topological_order(measured: MeasuredGraph, options: FeaturizeConfig) -> None:
    graph, configurations = measured.graph, measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    reduced = reduction(measured, options)
    result = again(graph, reduced)  # a Graph checks that its edges lead backwards, so that it has no cycle
    node_ids = reduced.node_of[configurations.node_ids]
    np.testing.assert_array_equal(result.node_feat[node_ids], graph.node_feat[configurations.node_ids])
    np.testing.assert_array_equal(reduced.opcode == VIRTUAL_OPCODE, reduced.virtual)
    members = reduced.node_of >= 0
    expected = np.zeros(result.nodes)
    np.add.at(expected, reduced.node_of[members], graph.node_feat[members, 0])
    assert result.node_feat[:, 0].tolist() == expected.tolist()
    # Blocks of node_splits are those of the original nodes of each reduced node.
    before, after = (
        np.searchsorted(splits, nodes, side="right")
        for splits, nodes in ((graph.node_splits, np.flatnonzero(members)), (result.node_splits, reduced.node_of))
    )
    np.testing.assert_array_equal(np.unique(before, return_inverse=True)[1] + 1, after[members])


@given(measured_graphs(), options_that_reduce)
@settings(deadline=None, max_examples=100)
def test_reducing_again_changes_nothing(measured: MeasuredGraph, options: FeaturizeConfig) -> None:
    # A virtual node is a short cut, which may connect configurable nodes better than the earlier paths.
    options = options.model_copy(update={"prune_paths": options.prune_paths and not options.virtual_nodes})
    if options.prune_edges:
        options = options.model_copy(update={"prune_hops": min(1, options.prune_hops or 0), "prune_paths": False})
    assert isinstance(measured.configurations, LayoutConfigurations)
    reduced = reduction(measured, options)
    result = again(measured.graph, reduced)
    twice = reduction(layouts(result, reduced.node_of[measured.configurations.node_ids]), options)
    assert (twice.merged == 1).all()
    assert twice.first.tolist() == list(range(result.nodes))
    np.testing.assert_array_equal(twice.edge_index, result.edge_index)
    np.testing.assert_array_equal(twice.node_splits, result.node_splits)


def test_sums_are_exact_beyond_float32() -> None:
    measured = layouts(chain(6), [5])
    columns = np.array([[1], [2**24], [1], [0], [0], [0]], dtype=np.float32)
    reduced = reduction(measured, PLAIN.model_copy(update={"prune_hops": 0, "virtual_nodes": True}))
    assert reduced.sums(columns)[:, 0].tolist() == [2**24 + 2, 0, 0]


@pytest.mark.parametrize("options", [EDGES, PATHS, ONE.model_copy(update={"prune_paths": True, "virtual_nodes": True})])
def test_tiles_keep_all(tile_graph: MakeGraph, options: FeaturizeConfig) -> None:
    graph = (measured := tile_graph(nodes=6)).graph
    reduced = reduction(measured, options)
    assert reduced.node_of.tolist() == reduced.first.tolist() == list(range(6))
    np.testing.assert_array_equal(reduced.edge_index, graph.edge_index)
    np.testing.assert_array_equal(reduced.node_splits, graph.node_splits)
    np.testing.assert_array_equal(reduced.opcode, graph.node_opcode)


def test_without_options_layouts_keep_all(layout_graph: MakeGraph) -> None:
    measured = layout_graph(nodes=40)
    reduced = reduction(measured, PLAIN)
    assert len(reduced.first) == 40
    assert reduced.sums(measured.graph.node_feat).tobytes() == measured.graph.node_feat.tobytes()


@pytest.mark.parametrize(
    ("options", "nodes", "virtual", "edges"),
    [
        (PLAIN, 3163, 0, 5112),
        # The configurable nodes and their direct neighbours, as counted by the winner of the Kaggle competition.
        (ONE, 223, 0, 219),
        (EDGES, 223, 0, 181),
        (PATHS, 176, 0, 187),
        (ONE.model_copy(update={"prune_paths": True}), 264, 0, 313),
        (ONE.model_copy(update={"virtual_nodes": True}), 332, 86, 938),
        (PATHS.model_copy(update={"virtual_nodes": True}), 288, 78, 971),
        (ONE.model_copy(update={"prune_paths": True, "virtual_nodes": True}), 382, 92, 1126),
    ],
)
def test_a_real_graph(shared_data: Path, options: FeaturizeConfig, nodes: int, virtual: int, edges: int) -> None:
    path = shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
    measured = read_graph(path, "layout", first=1)
    reduced = reduction(measured, options)
    assert (len(reduced.first), int(reduced.virtual.sum()), len(reduced.edge_index)) == (nodes, virtual, edges)
    if options.virtual_nodes:
        assert reduced.merged.sum() == 3163
        # All seven computations remain, of which four have configurable nodes.
        assert len(reduced.node_splits) == len(measured.graph.node_splits) == 8
