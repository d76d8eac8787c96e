"""Copies of tensors: which ones, what they cost, and the sizes of dimensions in the order of layouts."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.data.configurations import LayoutConfigurations, pack_layouts
from hlorank.data.graph import Graph, Int64
from hlorank.featurize import relayout
from hlorank.featurize.index_maps import operand_pairs
from hlorank.featurize.tile_padding import computed_layouts, tile_padding
from hlorank.fetch.synthetic_graphs import Program
from hlorank.hlo.node_features import COLUMNS, OPCODES
from tests.featurize.small_graphs import graph_of, layout_graph


def row(*tensors: list[int], missing: int = -1) -> list[int]:
    """Pad each list to six values, and the row to three tensors."""
    return [value for part in (*tensors, *[[]] * (3 - len(tensors))) for value in [*part, *[missing] * (6 - len(part))]]


def sized(
    graph: Graph, node_ids: Int64, codebook: NDArray[np.int8], codes: NDArray[np.uint8], *, costs: bool = False
) -> tuple[NDArray[Any], ...]:
    tensors = relayout.configured_tensors(graph, node_ids, codebook, codes)
    return relayout.sized_layouts(graph, tensors, codebook, codes, costs=costs)


@pytest.fixture
def known() -> Graph:
    """Two products of (8, 3) with (3, 5), a reshape of the first to (4, 10), and one of (8, 5) to (4, 10) again."""
    dims = [[8, 3], [3, 5], [8, 5], [4, 10], [8, 5], [4, 10]]
    feat = np.zeros((6, 140), dtype=np.float32)
    feat[:, 21:23], feat[:, 28] = dims, np.prod(dims, axis=1)
    opcodes = [OPCODES[name] for name in ("parameter", "parameter", "dot", "reshape", "dot", "reshape")]
    edges = np.array([[2, 0], [2, 1], [3, 2], [4, 0], [4, 1], [5, 4]])
    return Graph(feat, np.array(opcodes, dtype=np.uint8), edges, np.array([0, 6]))


def test_rows_that_move_something_else_are_distinct(known: Graph) -> None:
    """Of the two equal products, the second one is column-major, so that a column-major layout moves nothing there."""
    feat = known.node_feat.copy()
    feat[:, 15] = 1  # s8, one byte an element
    feat[[0, 1, 2, 3, 5], 134] = 1
    feat[4, 135] = 1
    graph = Graph(feat, known.node_opcode, known.edge_index, known.node_splits)
    rows = np.array([row([]), row([0, 1])], dtype=np.int8)
    codes = np.array([[0, 1], [1, 0], [1, 1]], dtype=np.uint8)
    codebook, sizes, costs, new = sized(graph, np.array([2, 4]), rows, codes, costs=True)
    assert codebook.tolist() == rows[[0, 1, 1]].tolist()
    assert sizes[1].tolist() == sizes[2].tolist() == [8, 5, *[0] * 16]
    share = 40 / (24 + 15 + 40 + 40 + 40 + 40)
    np.testing.assert_allclose(costs, np.repeat([[0], [share], [0]], 3, axis=1), rtol=1e-6)
    assert new.tolist() == [[0, 2], [1, 0], [1, 2]]


def test_unknown_tensors_have_size_0(known: Graph) -> None:
    lonely = Graph(known.node_feat, known.node_opcode, known.edge_index[:2], known.node_splits)
    rows = np.array([row([0, 1, 2], [0, 1])], dtype=np.int8)
    _, sizes, *_ = sized(lonely, np.array([3]), rows, np.zeros((1, 1), np.uint8), costs=True)
    assert sizes.tolist() == [[4, 10, *[0] * 16]]


def test_agrees_with_a_loop_over_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = layout_graph(nodes=120, configurations=30)
    graph, layouts = measured.graph, measured.configurations
    assert isinstance(layouts, LayoutConfigurations)
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(-1, 4, size=(9, 18)).astype(np.int8), axis=0)
    codes = rng.integers(0, 8, size=(30, len(layouts.node_ids))).astype(np.uint8)  # the last row is never used
    codebook, sizes, costs, new = sized(graph, layouts.node_ids, rows, codes)
    assert [array.dtype.name for array in (codebook, sizes, costs, new)] == ["int8", "float32", "float32", "uint8"]
    assert not costs.any()
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

    monkeypatch.setattr("hlorank.featurize.features._BLOCK_BYTES", 70)  # two nodes at a time
    parts = sized(graph, layouts.node_ids, rows, codes)
    for one, other in zip(parts, (codebook, sizes, costs, new), strict=True):
        np.testing.assert_array_equal(one, other)


def test_codes_take_the_smallest_type() -> None:
    feat = np.zeros((300, 140), dtype=np.float32)
    feat[:, 21] = np.arange(300) + 1
    graph = Graph(feat, np.full(300, 75, np.uint8), np.zeros((0, 2), np.int64), np.array([0, 300]))
    rows = np.array([row([0])], dtype=np.int8)
    codes = np.zeros((1, 300), np.uint8)
    for count, dtype in ((256, np.uint8), (257, np.uint16)):
        codebook, sizes, _, new = sized(graph, np.arange(count), rows, codes[:, :count], costs=True)
        assert new.dtype == dtype
        assert new[0].tolist() == list(range(count))
        assert sizes[:, 0].tolist() == list(range(1, count + 1))
        assert codebook.tolist() == rows.tolist() * count


def test_own_layouts_and_shares_of_output_and_operands() -> None:
    program = Program()
    left = program.add("parameter", (8, 3), layout=(0, 1))
    right = program.add("parameter", (3, 5), element="bf16")
    program.add("dot", (8, 5), [left, right])
    tensors = np.array([[2, 0, 1], [1, -1, 0]])  # of the last one no layout is known: row-major
    graph = program.graph()
    assert relayout.own_layouts(graph, tensors).tolist() == [row([1, 0], [0, 1], [1, 0]), row([1, 0], [], [0, 1])]
    total = 4 * 8 * 3 + 2 * 3 * 5 + 4 * 8 * 5
    expected = np.array([[160, 96, 30], [30, 0, 96]], dtype=np.float32) / total
    np.testing.assert_allclose(relayout.byte_shares(graph, tensors), expected, rtol=1e-6)


def test_what_a_copy_keeps() -> None:
    """Tensors of (1, 4, 5, 6), row-major: dimensions of size 1 do not count, and some layouts have only minor ones."""
    changes: dict[tuple[int, ...], list[float]] = {
        (1, 2, 3, 0): [1, 1, 1],
        (3, 1, 2, 0): [1, 0, 1 / np.sqrt(6)],
        (3, 2, 0, 1): [0, 0, 0],
        (): [0, 0, 0],
        (3, 0, 2): [0, 0, 0],
        (3, 1): [1, 0, 1 / np.sqrt(6)],
        (2,): [1, 1, 1],
    }
    own = np.array([row([3, 2, 1, 0])] * len(changes), dtype=np.int8)
    layouts = np.array([row([*layout]) for layout in changes], dtype=np.int8)
    shapes = np.array([row([1, 4, 5, 6], missing=0)] * len(changes), dtype=np.float32)
    moves = relayout.copy_moves(own, np.array([[0.5, 0.25, 0.125]] * len(changes), dtype=np.float32), layouts, shapes)
    assert moves.dtype == np.float32
    np.testing.assert_allclose(moves, [[0.5 * weight for weight in weights] for weights in changes.values()], rtol=1e-6)


def test_tensors_are_weighted_by_their_shares() -> None:
    """Output and kernel of (4, 9) are column-major instead of row-major, the input is not, another one is unknown."""
    own = np.array([row([1, 0], [1, 0], [1, 0]), row([], [1, 0])], dtype=np.int8)
    layouts = np.array([row([0, 1], [1, 0], [0, 1]), row([0, 1], [0, 1])], dtype=np.int8)
    shapes = np.array([row([4, 9], [4, 9], [4, 9], missing=0), row([], [4, 9], missing=0)], dtype=np.float32)
    shares = np.array([[0.5, 1, 0.25]] * 2, dtype=np.float32)
    assert relayout.copy_moves(own, shares, layouts, shapes).tolist() == [[0.75] * 3, [1] * 3]


CHAIN = graph_of(
    ("parameter", [8, 3], []),
    ("parameter", [3, 5], []),
    ("dot", [8, 5], [0, 1]),
    ("parameter", [8, 5], []),
    ("add", [8, 5], [2, 3]),
    ("transpose", [5, 8], [4]),
    ("negate", [5, 8], [5]),
    ("reduce", [5], [6]),
    ("abs", [5], [7]),  # joined to no configured node
    columns={5: {31: 1, 32: 0}},
)


def test_layouts_spread_over_elementwise_operations_and_transposes() -> None:
    tensors, uses = relayout.copy_tensors(CHAIN, np.array([2]), np.array([[2, 0, 1]]))
    # Nodes 0 to 6: reduce has the layout of the graph, and so has what follows.
    assert tensors[:, 0].tolist() == [-1, -1, 0, -1, -1, -1, -1]
    assert tensors[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert not tensors[:, 2].any()  # node 6 is used by the reduction
    assert tensors[:, relayout.AXES].tolist() == [[0, 1, 2, 3, 4, 5]] * 5 + [[1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert tensors[:, relayout.SHAPE].tolist()[2:6] == [[8, 5, 0, 0, 0, 0]] * 3 + [[5, 8, 0, 0, 0, 0]]
    assert uses.tolist() == [[0, 2, 1], [1, 2, 2], [2, 4, 0], [3, 4, 0], [4, 5, 0], [5, 6, 0]]
    assert tensors.dtype == uses.dtype == np.dtype(np.int32)


@pytest.mark.parametrize("axes", [[0, 0], [1e30, -1], [0, 1]])
def test_a_transpose_whose_axes_are_unknown_has_the_layout_of_the_graph(axes: list[float]) -> None:
    unknown = CHAIN.node_feat.copy()
    unknown[5, 31:33] = axes
    graph = Graph(unknown, CHAIN.node_opcode, CHAIN.edge_index, CHAIN.node_splits)
    _, uses = relayout.copy_tensors(graph, np.array([2]), np.array([[2, 0, 1]]))
    assert uses.tolist() == [[0, 2, 1], [1, 2, 2], [2, 4, 0], [3, 4, 0]]


def test_a_reshape_has_one_operand_and_a_square_one_tensor_of_two_slots() -> None:
    graph = graph_of(("parameter", [4, 4], []), ("dot", [4, 4], [0]), ("reshape", [16], [1]))
    tensors, uses = relayout.copy_tensors(graph, np.array([1, 2]), np.array([[1, 0, 0], [2, 1, 1]]))
    assert uses.tolist() == [[0, 1, 1], [0, 1, 2], [1, 2, 1]]
    assert tensors[:, 2].tolist() == [0, 0, 1]
    assert tensors[:, 3].tolist() == [4, 4, 4]


def test_a_tpu_computes_in_the_less_padded_of_two_orders_and_all_but_given_layouts_spread() -> None:
    """A convolution of batch 16 and 8 features, a window over it, its reshape, a product of that, and more columns."""
    batch = COLUMNS["convolution_output_batch_and_feature"].start
    graph = graph_of(
        ("parameter", [16, 9, 9, 4], []),
        ("convolution", [16, 9, 9, 8], [0]),
        ("reduce-window", [16, 3, 3, 8], [1]),
        ("reshape", [144, 8], [2]),
        ("dot", [144, 8], [3]),
        ("negate", [144, 8], [4]),
        ("parameter", [144, 4], []),
        ("concatenate", [144, 20], [5, 6, 4]),
        columns={1: {batch: 0, batch + 1: 3}},
    )
    nodes = np.array([1, 3, 4])
    given = [[0, 3, 2, 1, -1, -1], [0, 1, -1, -1, -1, -1], [0, 1, -1, -1, -1, -1]]
    assert computed_layouts(graph, nodes).tolist() == given
    tensors, uses = relayout.copy_tensors(graph, nodes, np.array([[1, 0, -1], [3, 2, -1], [4, 3, -1]]), on_tpu=True)
    assert tensors[:, relayout.COLUMN].tolist() == [-1, 0, -1, -1, 2, -1, -1]  # a reshape is not configurable
    assert tensors[:, relayout.FLEXIBLE].tolist() == [0, 0, 1, 0, 0, 1, 1]
    assert tensors[[1, 4], relayout.GIVEN].tolist() == [given[0], given[2]]
    assert uses.tolist() == [[0, 1, 1], [1, 2, 0], [3, 4, 1], [4, 5, 0], [4, 6, 0], [5, 6, 0]]  # the largest operands


def test_padding_to_the_tiles_of_a_tpu() -> None:
    """At best 24 of 128 lanes of f32[16,9,9,24] are full and all sublanes, of f32[5,3,130] 130 of 256 and 3 of 4."""
    turned = 128 / 16 - 128 / 24
    operand = 256 / 130 * (8 / 5 - 4 / 3)
    costs: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]]] = {
        "convolution": {
            ((3, 0), ()): [0, 0, 0],
            ((0, 3), ()): [turned, 0, 0],
            ((1, 2), ()): [0, 0, 0],
            ((), (2, 1, 0)): [0, 0, 0],
            ((3, 0), (2, 0)): [0, operand, 0],
        },
        "dot": {((0, 3), (2, 0)): [turned, operand, 0]},
        "reshape": {((0, 3), (2, 0)): [0, 0, 0]},
    }
    for opcode, rows in costs.items():
        kinds, shares = np.full((len(rows), 1), OPCODES[opcode], np.int8), np.full((len(rows), 3), 0.5, np.float32)
        shapes = np.array([row([16, 9, 9, 24], [5, 3, 130], [100], missing=0)] * len(rows), dtype=np.float32)
        layouts = np.array([row([*output], [*first], [0]) for output, first in rows], dtype=np.int8)
        found = tile_padding(kinds, shares, layouts, shapes)
        np.testing.assert_allclose(found, np.array([*rows.values()]) / 2, rtol=1e-5, atol=1e-6)
