"""Structure of generated graphs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.graph import Graph
from hlorank.fetch.synthetic_graphs import ELEMENTWISE, Program, build_graph, convolution_fields
from hlorank.hlo.node_features import COLUMNS, OPCODES, SHAPE

NAMES = {number: name for name, number in OPCODES.items()}


def shape(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(size) for size in graph.node_feat[node, SHAPE.start : SHAPE.start + 6] if size)


def order(graph: Graph, node: int) -> tuple[int, ...]:
    layout = graph.node_feat[node, COLUMNS["minor_to_major"].start :]
    return tuple(int(dim) for dim in layout)[: len(shape(graph, node))]


@settings(deadline=None, max_examples=20)
@given(nodes=st.integers(50, 900), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_graphs_are_sound(nodes: int, share: float, seed: int) -> None:
    wanted = 1 + int(share * (nodes // 6 - 1))
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    assert (graph.nodes, len(node_ids)) == (nodes, wanted)
    assert {NAMES[opcode] for opcode in graph.node_opcode[node_ids].tolist()} <= {"convolution", "dot", "reshape"}
    consumes = np.bincount(graph.edge_index[:, 0], minlength=nodes)
    sources = np.isin(graph.node_opcode, [OPCODES["parameter"], OPCODES["constant"]])
    assert ((consumes == 0) == sources).all()
    assert np.unique(graph.edge_index, axis=0).tolist() == graph.edge_index.tolist(), "sorted rows"
    roots = np.flatnonzero(graph.node_feat[:, 0])
    assert roots.tolist() == (graph.node_splits[1:] - 1).tolist()
    # Nothing but the last root is left unused, and edges leave a computation only to call another one's root.
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]
    block = np.searchsorted(graph.node_splits, np.arange(nodes), side="right")
    u, v = graph.edge_index[(block[graph.edge_index] != block[graph.edge_index[:, :1]]).any(axis=1)].T
    assert set(graph.node_opcode[u]) <= {OPCODES["while"]}
    assert set(v) <= set(roots)


@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_consistent(seed: int) -> None:
    graph, _ = build_graph(np.random.default_rng(seed), 500, None)
    for node, opcode in enumerate(graph.node_opcode.tolist()):
        dims, name = shape(graph, node), NAMES[opcode]
        assert sorted(order(graph, node)) == list(range(len(dims)))
        operands = [shape(graph, v) for v in graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()]
        if name == "reshape":
            assert math.prod(dims) == math.prod(operands[0])
        elif name == "dot":
            assert (operands[0][-1], dims) == (operands[1][0], (*operands[0][:-1], operands[1][1]))
        elif name == "convolution":
            assert operands[1][-2:] == (operands[0][-1], dims[-1])
        elif name in ELEMENTWISE:
            assert {*operands} == {dims}


def test_a_convolution_has_the_features_of_a_real_node(shared_data: Path) -> None:
    real = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/train/unet3d.npz", "layout").graph
    node = int(np.flatnonzero(real.node_opcode == OPCODES["convolution"])[0])  # 3 x 3 x 3, stride 1
    program = Program()
    program.add(
        "convolution",
        shape(real, node),
        layout=order(real, node),
        element="bf16",
        **convolution_fields((3, 3, 3), 1, 5),
    )
    program.add("parameter", ())  # the root
    made = program.graph().node_feat[0]
    # The type, and whether the kernel's axes are in the order of this generator, may differ.
    different = np.flatnonzero(made != real.node_feat[node]).tolist()
    assert set(different) <= {*range(2, 21), *range(93, 107)}


def test_more_configurable_nodes_than_a_sixth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.synthetic\.configurable_nodes=34: .* 33"):
        build_graph(np.random.default_rng(0), 200, 34)
