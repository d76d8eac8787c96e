"""Tensors whose layouts depend on a configuration: which ones, and their uses."""

from __future__ import annotations

import numpy as np
import pytest

from hlorank.data.graph import Graph
from hlorank.featurize.copies import AXES, SHAPE, copy_tensors
from hlorank.hlo.node_features import OPCODES


def graph_of(nodes: list[tuple[str, list[int], list[int]]], dimensions: dict[int, list[int]] | None = None) -> Graph:
    """Make a graph of float32 tensors from the opcode, dimensions and operands of each node."""
    feat = np.zeros((len(nodes), 140), dtype=np.float32)
    for number, (_, dims, _) in enumerate(nodes):
        feat[number, 21 : 21 + len(dims)], feat[number, 28], feat[number, 13] = dims, np.prod(dims), 1
        axes = (dimensions or {}).get(number, [])
        feat[number, 31 : 31 + len(axes)] = axes
    edges = [[user, operand] for user, (_, _, operands) in enumerate(nodes) for operand in operands]
    opcodes = np.array([OPCODES[name] for name, *_ in nodes], dtype=np.uint8)
    return Graph(feat, opcodes, np.array(edges, dtype=np.int64).reshape(-1, 2), np.array([0, len(nodes)]))


CHAIN = graph_of(
    [
        ("parameter", [8, 3], []),
        ("parameter", [3, 5], []),
        ("dot", [8, 5], [0, 1]),
        ("parameter", [8, 5], []),
        ("add", [8, 5], [2, 3]),
        ("transpose", [5, 8], [4]),
        ("negate", [5, 8], [5]),
        ("reduce", [5], [6]),
        ("abs", [5], [7]),  # joined to no configured node
    ],
    {5: [1, 0]},
)


def test_layouts_spread_over_elementwise_operations_and_transposes() -> None:
    tensors, uses = copy_tensors(CHAIN, np.array([2]), np.array([[2, 0, 1]]))
    # Nodes 0 to 6: reduce has the layout of the graph, and so has what follows.
    assert tensors[:, 0].tolist() == [-1, -1, 0, -1, -1, -1, -1]
    assert tensors[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert not tensors[:, 2].any()  # node 6 is used by the reduction
    assert tensors[:, AXES].tolist() == [[0, 1, 2, 3, 4, 5]] * 5 + [[1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert tensors[:, SHAPE].tolist()[2:6] == [[8, 5, 0, 0, 0, 0]] * 3 + [[5, 8, 0, 0, 0, 0]]
    assert uses.tolist() == [[0, 2, 1], [1, 2, 2], [2, 4, 0], [3, 4, 0], [4, 5, 0], [5, 6, 0]]
    assert tensors.dtype == uses.dtype == np.dtype(np.int32)


@pytest.mark.parametrize("axes", [[0, 0], [1e30, -1], [0, 1]])
def test_a_transpose_whose_axes_are_unknown_has_the_layout_of_the_graph(axes: list[float]) -> None:
    unknown = CHAIN.node_feat.copy()
    unknown[5, 31:33] = axes
    graph = Graph(unknown, CHAIN.node_opcode, CHAIN.edge_index, CHAIN.node_splits)
    _, uses = copy_tensors(graph, np.array([2]), np.array([[2, 0, 1]]))
    assert uses.tolist() == [[0, 2, 1], [1, 2, 2], [2, 4, 0], [3, 4, 0]]


def test_a_reshape_has_one_operand_and_a_square_one_tensor_of_two_slots() -> None:
    graph = graph_of([("parameter", [4, 4], []), ("dot", [4, 4], [0]), ("reshape", [16], [1])])
    tensors, uses = copy_tensors(graph, np.array([1, 2]), np.array([[1, 0, 0], [2, 1, 1]]))
    assert uses.tolist() == [[0, 1, 1], [0, 1, 2], [1, 2, 1]]
    assert tensors[:, 2].tolist() == [0, 0, 1]
    assert tensors[:, 3].tolist() == [4, 4, 4]


def test_without_operands_there_are_no_uses() -> None:
    graph = graph_of([("dot", [4, 4], [])])
    tensors, uses = copy_tensors(graph, np.array([0]), np.array([[0, -1, -1]]))
    assert (len(tensors), uses.shape) == (1, (0, 3))
