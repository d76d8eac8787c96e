"""Pruning around configurable nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

from hlorank.collection import read_graph
from hlorank.featurize.prune import induced_subgraph, kept_nodes, nodes_within
from hlorank.graph import Graph, LayoutConfigurations, MeasuredGraph

MakeGraph = Callable[..., MeasuredGraph]


def chain(nodes: int) -> Graph:
    """Each node consumes the one before; two blocks of equal size."""
    feat = np.zeros((nodes, 140), dtype=np.float32)
    feat[:, 0] = np.arange(nodes)
    edges = np.stack([np.arange(1, nodes), np.arange(nodes - 1)], axis=1)
    return Graph(feat, np.arange(1, nodes + 1).astype(np.uint8), edges, np.array([0, nodes // 2, nodes]))


def test_a_chain_by_hand() -> None:
    graph = chain(10)
    kept = nodes_within(graph, np.array([7]), 2)
    assert kept.tolist() == [5, 6, 7, 8, 9]
    pruned = induced_subgraph(graph, kept)
    assert pruned.node_feat[:, 0].tolist() == [5, 6, 7, 8, 9]
    assert pruned.node_opcode.tolist() == [6, 7, 8, 9, 10]
    assert pruned.edge_index.tolist() == [[1, 0], [2, 1], [3, 2], [4, 3]]
    assert pruned.node_splits.tolist() == [0, 5]  # the first block is empty and vanishes


def test_blocks_shrink() -> None:
    pruned = induced_subgraph(chain(10), np.array([0, 4, 9]))
    assert pruned.edge_index.shape == (0, 2)
    assert pruned.node_splits.tolist() == [0, 2, 3]


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_shortest_paths(layout_graph: MakeGraph, seed: int, hops: int) -> None:
    measured = layout_graph(seed=seed, nodes=60)
    assert isinstance(measured.configurations, LayoutConfigurations)
    graph, sources = measured.graph, measured.configurations.node_ids
    adjacency = coo_matrix((np.ones(len(graph.edge_index)), graph.edge_index.T), shape=(60, 60))
    distance = shortest_path(adjacency, directed=False, unweighted=True, indices=sources).min(axis=0)
    kept = kept_nodes(measured, hops)
    assert kept.tolist() == np.flatnonzero(distance <= hops).tolist()
    pruned = induced_subgraph(graph, kept)
    inside = np.isin(graph.edge_index, kept).all(axis=1)
    assert kept[pruned.edge_index].tolist() == graph.edge_index[inside].tolist()


def test_no_hops_and_tiles_keep_all(layout_graph: MakeGraph, tile_graph: MakeGraph) -> None:
    assert len(kept_nodes(layout_graph(nodes=40), None)) == 40
    assert len(kept_nodes(tile_graph(nodes=6), 0)) == 6


def test_a_real_graph_shrinks_as_published(shared_data: Path) -> None:
    path = shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
    measured = read_graph(path, "layout", first=1)
    # The configurable nodes and their direct neighbours, as counted by the winner of the Kaggle competition.
    assert (measured.graph.nodes, len(kept_nodes(measured, 1))) == (3163, 223)
