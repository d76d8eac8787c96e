"""Sizes of dimensions in the order of layouts: exact, and compared with a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, pack_layouts
from hlorank.data.graph import Graph, Int64
from hlorank.featurize.operands import operand_pairs
from hlorank.featurize.sizes import configured_tensors, sized_layouts
from hlorank.hlo.node_features import OPCODES


def row(output: list[int], first: list[int] | None = None, second: list[int] | None = None) -> list[int]:
    """Pad each list to six values."""
    return [value for part in (output, first or [], second or []) for value in [*part, *[-1] * (6 - len(part))]]


def sized(
    graph: Graph, node_ids: Int64, codebook: NDArray[np.int8], codes: NDArray[np.uint8], *, moves: bool = False
) -> tuple[NDArray[Any], ...]:
    tensors = configured_tensors(graph, node_ids, codebook, codes)
    return sized_layouts(graph, tensors, codebook, codes, moves=moves)


@pytest.fixture
def known() -> Graph:
    """Two products of (8, 3) with (3, 5), a reshape of the first to (4, 10), and one of (8, 5) to (4, 10) again."""
    dims = [[8, 3], [3, 5], [8, 5], [4, 10], [8, 5], [4, 10]]
    feat = np.zeros((6, 140), dtype=np.float32)
    feat[:, 21:23], feat[:, 28] = dims, np.prod(dims, axis=1)
    opcodes = [OPCODES[name] for name in ("parameter", "parameter", "dot", "reshape", "dot", "reshape")]
    edges = np.array([[2, 0], [2, 1], [3, 2], [4, 0], [4, 1], [5, 4]])
    return Graph(feat, np.array(opcodes, dtype=np.uint8), edges, np.array([0, 6]))


def test_sizes_are_in_the_order_of_the_layouts(known: Graph) -> None:
    rows = [row([]), row([0, 1], [1, 0], [0, 1]), row([1], [1, 0])]
    codes = np.array([[0, 0, 1, 2], [1, 2, 0, 0], [1, 1, 1, 2]], dtype=np.uint8)
    codebook, sizes, moves, new = sized(known, np.array([2, 3, 4, 5]), np.array(rows, dtype=np.int8), codes)
    # Row 0 has no sizes anywhere. Row 1 is one at both products, but another one at the reshape of node 3.
    assert codebook.tolist() == [rows[0], rows[1], rows[1], rows[2]]
    absent = [0] * 4
    assert sizes.tolist() == [
        [0] * 18,
        [8, 5, *absent, 3, 8, *absent, 3, 5, *absent],
        [4, 10, *absent, 5, 8, *absent, 8, 5, *absent],
        [10, 0, *absent, 5, 8, *absent, *[0] * 6],
    ]
    assert moves.tolist() == [[0, 0, 0]] * 4
    assert new.tolist() == [[0, 0, 1, 3], [1, 3, 0, 0], [1, 2, 1, 3]]
    assert [array.dtype.name for array in (codebook, sizes, moves, new)] == ["int8", "float32", "float32", "uint8"]


def test_rows_that_move_something_else_are_distinct(known: Graph) -> None:
    """Of the two equal products, the second one is column-major, so that a column-major layout moves nothing there."""
    feat = known.node_feat.copy()
    feat[:, 15] = 1  # s8, one byte an element
    feat[[0, 1, 2, 3, 5], 134] = 1
    feat[4, 135] = 1
    graph = Graph(feat, known.node_opcode, known.edge_index, known.node_splits)
    rows = np.array([row([]), row([0, 1])], dtype=np.int8)
    codes = np.array([[0, 1], [1, 0], [1, 1]], dtype=np.uint8)
    codebook, sizes, moves, new = sized(graph, np.array([2, 4]), rows, codes, moves=True)
    assert codebook.tolist() == rows[[0, 1, 1]].tolist()
    assert sizes[1].tolist() == sizes[2].tolist() == [8, 5, *[0] * 16]
    share = 40 / (24 + 15 + 40 + 40 + 40 + 40)
    np.testing.assert_allclose(moves, np.repeat([[0], [share], [0]], 3, axis=1), rtol=1e-6)
    assert new.tolist() == [[0, 2], [1, 0], [1, 2]]


def test_unknown_tensors_have_size_0(known: Graph) -> None:
    lonely = Graph(known.node_feat, known.node_opcode, known.edge_index[:2], known.node_splits)
    rows = np.array([row([0, 1, 2], [0, 1])], dtype=np.int8)
    _, sizes, *_ = sized(lonely, np.array([3]), rows, np.zeros((1, 1), np.uint8), moves=True)
    assert sizes.tolist() == [[4, 10, *[0] * 16]]


def test_agrees_with_a_loop_over_nodes(
    layout_graph: Callable[..., MeasuredGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = layout_graph(nodes=120, configurations=30)
    graph, layouts = measured.graph, measured.configurations
    assert isinstance(layouts, LayoutConfigurations)
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(-1, 4, size=(9, 18)).astype(np.int8), axis=0)
    codes = rng.integers(0, 8, size=(30, len(layouts.node_ids))).astype(np.uint8)  # the last row is never used
    codebook, sizes, moves, new = sized(graph, layouts.node_ids, rows, codes)

    highest = np.array([rows[np.unique(column)].max(axis=0) for column in codes.T]).reshape(-1, 3, 6).max(axis=2)
    pairs = operand_pairs(graph, layouts.node_ids, highest[:, 1:].astype(np.int64) + 1)
    for column, node in enumerate(layouts.node_ids):
        tensors = [node, *pairs[column]]
        for configuration in range(30):
            values = rows[codes[configuration, column]]
            plain = [
                0 if value < 0 or tensors[i // 6] < 0 else graph.node_feat[tensors[i // 6], 21 + value]
                for i, value in enumerate(values)
            ]
            code = new[configuration, column]
            assert codebook[code].tolist() == values.tolist()
            assert sizes[code].tolist() == plain
    together = np.hstack([codebook.astype(np.float32), sizes])
    assert len(np.unique(together, axis=0)) == len(codebook) == int(new.max()) + 1 > 9
    assert (np.diff(pack_layouts(codebook)) >= 0).all()
    for before, after in zip(codes.T, new.T, strict=True):
        np.testing.assert_array_equal(
            np.unique(before, return_inverse=True)[1], np.unique(after, return_inverse=True)[1]
        )

    monkeypatch.setattr("hlorank.featurize.distinct._BLOCK_BYTES", 70)  # two nodes at a time
    parts = sized(graph, layouts.node_ids, rows, codes)
    for one, other in zip(parts, (codebook, sizes, moves, new), strict=True):
        np.testing.assert_array_equal(one, other)


def test_codes_take_the_smallest_type() -> None:
    feat = np.zeros((300, 140), dtype=np.float32)
    feat[:, 21] = np.arange(300) + 1
    graph = Graph(feat, np.full(300, 75, np.uint8), np.zeros((0, 2), np.int64), np.array([0, 300]))
    rows = np.array([row([0])], dtype=np.int8)
    codes = np.zeros((1, 300), np.uint8)
    for count, dtype in ((256, np.uint8), (257, np.uint16)):
        codebook, sizes, _, new = sized(graph, np.arange(count), rows, codes[:, :count], moves=True)
        assert new.dtype == dtype
        assert new[0].tolist() == list(range(count))
        assert sizes[:, 0].tolist() == list(range(1, count + 1))
        assert codebook.tolist() == rows.tolist() * count
