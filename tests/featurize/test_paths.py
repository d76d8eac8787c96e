"""Distances and connecting paths."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from hlorank.data.graph import Graph, Int64
from hlorank.featurize.paths import connecting_paths, distances


def graph_of(nodes: int, edges: list[tuple[int, int]]) -> Graph:
    feat = np.zeros((nodes, 140), dtype=np.float32)
    rows = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return Graph(feat, np.ones(nodes, dtype=np.uint8), rows, np.array([0, nodes]))


@st.composite
def programs(draw: st.DrawFn, max_nodes: int = 30) -> tuple[Graph, Int64]:
    """Draw a graph with edges in any order, also repeated ones, and some of its nodes."""
    nodes = draw(st.integers(1, max_nodes))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    edges = draw(st.lists(pairs, max_size=2 * nodes)) if nodes > 1 else []
    sources = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=5))
    return graph_of(nodes, [(max(pair), min(pair)) for pair in edges]), np.array(sorted(sources))


def reference_distances(graph: Graph, sources: Int64) -> list[int]:
    distance = dict.fromkeys(sources.tolist(), 0)
    front = list(distance)
    for node in front:
        for edge in graph.edge_index.tolist():
            for near, far in (edge, edge[::-1]):
                if near == node and far not in distance:
                    distance[far] = distance[node] + 1
                    front.append(far)
    return [distance.get(node, -1) for node in range(graph.nodes)]


def components(graph: Graph, nodes: Int64) -> Int64:
    """Return the connected component of each of the given nodes, over edges between them."""
    inside = np.isin(graph.edge_index, nodes).all(axis=1)
    ends = np.searchsorted(nodes, graph.edge_index[inside])
    adjacency = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(nodes), len(nodes)))
    return np.asarray(connected_components(adjacency, directed=False)[1], dtype=np.int64)


def paths(graph: Graph, sources: Int64) -> Int64:
    distance = distances(graph.edge_index, graph.nodes, sources)
    return np.flatnonzero(connecting_paths(graph, sources, distance))


@given(programs())
@settings(deadline=None, max_examples=50)
def test_distances(program: tuple[Graph, Int64]) -> None:
    graph, sources = program
    for some in (sources, sources[:0]):
        assert distances(graph.edge_index, graph.nodes, some).tolist() == reference_distances(graph, some)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([0], [0]),
        ([0, 4], [0, 1, 4]),
        ([0, 9], [0, 1, 4, 5, 9]),  # not the longer way through 6, 7, 8
        ([0, 2], [0, 1, 2]),
        ([3, 9], [3, 5, 6, 9]),
        ([0, 2, 4, 9], [0, 1, 2, 4, 5, 9]),
        ([0, 11], [0, 11]),  # components of their own
        ([0, 4, 10, 12], [0, 1, 4, 10, 11, 12]),
    ],
)
def test_small_graph_by_hand(sources: list[int], expected: list[int]) -> None:
    # 0, 2, 3 and 4 around 1; 9 beyond 5; a detour 3-6-5 and 4-5; 6-7-8-9; and a chain 10-11-12 apart.
    edges = [(1, 0), (2, 1), (3, 1), (4, 1), (5, 4), (6, 3), (6, 5), (7, 6), (8, 7), (9, 5), (9, 8), (11, 10), (12, 11)]
    found = paths(graph_of(13, edges), np.array(sources))
    assert found.tolist() == expected


def test_ties_are_resolved_by_the_smaller_numbers() -> None:
    square = graph_of(4, [(3, 2), (3, 1), (2, 0), (1, 0)])  # 0-1-3 and 0-2-3, edges of 2 first
    assert paths(square, np.array([0, 3])).tolist() == [0, 2, 3]
    longer = graph_of(6, [(5, 4), (5, 3), (4, 2), (3, 1), (2, 0), (1, 0)])
    assert distances(longer.edge_index, 6, np.array([0, 5])).tolist() == [0, 1, 1, 1, 1, 0]
    # Both connections have three edges, and that of row 2 comes before that of row 3.
    assert paths(longer, np.array([0, 5])).tolist() == [0, 2, 4, 5]


@given(programs())
@settings(deadline=None, max_examples=100)
def test_sources_remain_connected_and_the_tree_of_a_tree_is_the_tree(program: tuple[Graph, Int64]) -> None:
    graph, sources = program
    found = paths(graph, sources)
    assert set(sources) <= set(found)
    whole, part = components(graph, np.arange(graph.nodes)), components(graph, found)
    # Nodes of one component are connected, and no component without a source has any.
    np.testing.assert_array_equal(whole[found][:, None] == whole[found], part[:, None] == part)
    assert set(whole[found]) == set(whole[sources])
    inside = np.isin(graph.edge_index, found).all(axis=1)
    again = graph_of(len(found), [(u, v) for u, v in np.searchsorted(found, graph.edge_index[inside]).tolist()])
    assert len(paths(again, np.searchsorted(found, sources))) == len(found)


@given(programs(max_nodes=9))
@settings(deadline=None, max_examples=100)
def test_at_most_twice_the_edges_of_the_smallest_tree(program: tuple[Graph, Int64]) -> None:
    graph, sources = program
    others = [node for node in range(graph.nodes) if node not in sources]
    whole = components(graph, np.arange(graph.nodes))
    trees = len(set(whole[sources].tolist()))
    smallest = next(
        count
        for count in range(len(others) + 1)
        if any(
            len(set(components(graph, nodes).tolist())) == trees
            for more in combinations(others, count)
            if set(whole[(nodes := np.union1d(sources, np.array(more, dtype=np.int64)))]) == set(whole[sources])
        )
    )
    edges = len(sources) + smallest - trees
    assert edges <= len(paths(graph, sources)) - trees <= 2 * edges
