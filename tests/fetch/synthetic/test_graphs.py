"""Structure of generated graphs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.graph import Graph
from hlorank.fetch.synthetic.graphs import build_graph, default_configurable_nodes
from hlorank.fetch.synthetic.program import ELEMENTWISE, OPCODES, Program, convolution_columns
from tests.fetch.synthetic.drawn import (
    NAMES,
    minor_to_major,
    shape,
)


def near_shares(graph: Graph, node_ids: NDArray[np.int64]) -> list[float]:
    """Return the shares of the nodes within 1, 2 and 3 edges of a configurable one, edges taken in both directions."""
    near = np.zeros(graph.nodes, dtype=bool)
    near[node_ids] = True
    shares = []
    for _ in range(3):
        u, v = graph.edge_index.T
        reached = near.copy()
        reached[u[near[v]]] = True
        reached[v[near[u]]] = True
        near = reached
        shares.append(float(near.mean()))
    return shares


@pytest.mark.parametrize(("nodes", "expected"), [(490, 38), (1096, 56), (2774, 56), (3163, 62)])
def test_default_number_follows_real_graphs(nodes: int, expected: int) -> None:
    assert default_configurable_nodes(nodes) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("nodes", "wanted"), [(60, None), (120, None), (300, None), (490, None), (1100, None), (3000, None), (20_000, 800)]
)
def test_neighbourhoods_are_as_large_as_in_real_graphs(nodes: int, wanted: int | None, seed: int) -> None:
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    one, two, three = near_shares(graph, node_ids)
    assert 0.05 <= one <= 0.20
    assert 0.09 <= two <= 0.34
    assert 0.12 <= three <= 0.48


@settings(deadline=None, max_examples=40)
@given(nodes=st.integers(50, 900), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_graphs_are_sound(nodes: int, share: float, seed: int) -> None:
    wanted = 1 + int(share * (nodes // 6 - 1))
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    assert graph.nodes == nodes
    assert len(node_ids) == wanted
    assert set(graph.node_opcode[node_ids]) <= {26, 34, 75}
    consumes = np.bincount(graph.edge_index[:, 0], minlength=nodes)
    sources = np.isin(graph.node_opcode, [OPCODES["parameter"], OPCODES["constant"]])
    assert ((consumes == 0) == sources).all()
    assert (np.lexsort(graph.edge_index.T[::-1]) == np.arange(len(graph.edge_index))).all()
    assert len(np.unique(graph.edge_index, axis=0)) == len(graph.edge_index)
    roots = np.flatnonzero(graph.node_feat[:, 0])
    assert roots.tolist() == (graph.node_splits[1:] - 1).tolist()
    # Nothing but the last root is left unused, and edges leave a computation only to call another one's root.
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]
    block = np.searchsorted(graph.node_splits, np.arange(nodes), side="right")
    u, v = graph.edge_index[(block[graph.edge_index] != block[graph.edge_index[:, :1]]).any(axis=1)].T
    assert set(graph.node_opcode[u]) <= {OPCODES["while"]}
    assert set(v) <= set(roots)


def test_edges_and_computations_of_a_large_graph() -> None:
    graph, _ = build_graph(np.random.default_rng(0), 10_000, None)
    assert len(graph.edge_index) / graph.nodes == pytest.approx(1.65, abs=0.15)
    lengths = graph.edge_index[:, 0] - graph.edge_index[:, 1]
    assert np.median(lengths) < 20
    assert lengths.max() > 500
    blocks = np.diff(graph.node_splits)
    assert len(blocks) >= 3
    assert blocks.max() > 3 * blocks.min()


@pytest.mark.parametrize("seed", range(6))
def test_features_are_consistent(seed: int) -> None:
    graph, _ = build_graph(np.random.default_rng(seed), 500, None)
    feat = graph.node_feat.astype(np.float64)
    assert (feat == np.trunc(feat)).all()
    assert (feat[:, 2:21].sum(axis=1) == 1).all()
    assert (feat[:, 27] == feat[:, 21:27].sum(axis=1)).all()
    for node in range(graph.nodes):
        dims = shape(graph, node)
        assert feat[node, 28] == pytest.approx(math.prod(dims), rel=1e-6)
        assert sorted(minor_to_major(graph, node)) == list(range(len(dims)))
        assert (feat[node, 134 + len(dims) :] == 0).all()
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
        name = NAMES[int(graph.node_opcode[node])]
        if name == "reshape":
            assert math.prod(dims) == math.prod(shape(graph, operands[0]))
        elif name == "dot":
            left, right = shape(graph, operands[0]), shape(graph, operands[1])
            assert (left[-1], dims) == (right[0], (*left[:-1], right[1]))
        elif name == "convolution":
            left, right = shape(graph, operands[0]), shape(graph, operands[1])
            rank = len(dims)
            assert right == (*feat[node, 37 : 35 + rank], left[-1], dims[-1])
            strides = feat[node, 45 : 43 + rank]
            assert dims[1:-1] == tuple(np.ceil(np.array(left[1:-1]) / strides))
        elif name in ELEMENTWISE:
            assert {shape(graph, v) for v in operands} == {dims}
        elif name == "tuple":
            assert feat[node, 29] == len(operands)
    start = graph.node_splits[0]
    for end in graph.node_splits[1:]:
        inside = np.arange(start, end)
        parameters = inside[graph.node_opcode[inside] == OPCODES["parameter"]]
        assert feat[parameters, 30].tolist() == list(range(len(parameters)))
        start = end


def test_convolution_features_equal_a_real_node(shared_data: Path) -> None:
    real = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/train/unet3d.npz", "layout").graph
    node = int(np.flatnonzero(real.node_opcode == 26)[0])  # 3 x 3 x 3, stride 1
    program = Program()
    dims, order = shape(real, node), minor_to_major(real, node)
    x = program.add("parameter", dims)
    columns = convolution_columns((3, 3, 3), 1, 5)
    program.add("convolution", dims, [x], element="bf16", layout=order, columns=columns)
    assert np.array_equal(program.graph().node_feat[1], real.node_feat[node])


def test_plain_features_equal_a_real_node(shared_data: Path) -> None:
    real = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/train/unet3d.npz", "layout").graph
    ranks = (real.node_feat[:, 21:27] > 0).sum(axis=1)
    node = int(np.flatnonzero((real.node_opcode == OPCODES["multiply"]) & (ranks == 5))[0])
    program = Program()
    element = ("f32", "bf16")[int(real.node_feat[node, 15])]
    program.add("constant", shape(real, node), element=element, layout=minor_to_major(real, node))
    assert np.array_equal(program.graph().node_feat[0], real.node_feat[node])


def test_more_configurable_nodes_than_a_sixth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.synthetic\.configurable_nodes=34: .* 33"):
        build_graph(np.random.default_rng(0), 200, 34)
