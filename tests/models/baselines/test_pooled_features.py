"""Pooled features and copied bytes: exact on graphs made by hand, independent of order, sizes and memory."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hlorank.data.graph import Int64
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.relayout import READS, copied_bytes
from hlorank.models.baselines.pooled_features import (
    COPY_COLUMNS,
    KINDS,
    CopiedBytes,
    PooledGraph,
    changed_column,
    pooled_columns,
)
from hlorank.models.graph_inputs import InputSizes
from tests.graphs import layout_features, make_features

SIZES = InputSizes("layout", node_columns=2, opcodes=3, tile_columns=0)
RANDOM = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)


def everything(graph: GraphFeatures, sizes: InputSizes) -> NDArray[np.float32]:
    return PooledGraph(graph, sizes).rows(np.arange(graph.distinct))


@pytest.fixture
def known() -> GraphFeatures:
    """Four nodes, of which 1 and 3 are configurable; three configurations over two rows of layouts."""
    codebook = np.full((2, 18), -1, dtype=np.int8)
    codebook[1, 0], codebook[1, 17] = 5, 2
    return GraphFeatures(
        name="known",
        node_feat=np.array([[1, 0], [2, 0], [3, 0], [6, 4]], dtype=np.float32),
        opcode=np.array([0, 1, 1, 2], dtype=np.uint8),
        node_layout=np.full((4, 6), -1, dtype=np.int8),
        edge_index=np.array([[1, 0]]),
        node_splits=np.array([0, 4]),
        configurations=layout_features(
            np.array([1, 3]),
            codebook,
            np.zeros((2, 18), np.float32),
            np.array([[0, 1], [0, 0], [1, 1]], dtype=np.uint8),
        ),
        row_of=np.arange(3),
        runtime=np.array([1, 2, 3]),
        normalizer=None,
    )


def test_values(known: GraphFeatures) -> None:
    rows = everything(known, SIZES)
    rows, moved = rows[:, :-3], rows[:, -3:]
    assert (moved == 0.5).all()
    assert rows.dtype == np.float32
    assert rows.shape == (3, pooled_columns(SIZES) - 3)
    of_graph, places, of_changed = np.split(rows, [6, 6 + 18 * 7], axis=1)
    shared = np.array([np.log(5), 0.25, 0.5, 0.25, 3, 1], dtype=np.float32)
    np.testing.assert_array_equal(of_graph, np.tile(shared, (3, 1)))
    # The values -1..5 at the first position: [0, 1] has one of each row, [0, 0] and [1, 1] two of one. As ranks: the
    # frequencies 0.5, 1 and 0 of -1 are the second, third and first of three.
    first, second, third, equal = 1 / 6, 3 / 6, 5 / 6, 0.5
    np.testing.assert_allclose(places[:, [0, 6]], [[second, second], [third, first], [first, third]])
    np.testing.assert_allclose(places[:, [-7, -4]], [[second, second], [third, first], [first, third]])
    assert (np.delete(places, [0, 6, places.shape[1] - 7, places.shape[1] - 4], axis=1) == equal).all()
    # The most frequent are row 0 at node 1 (opcode 1) and row 1 at node 3 (opcode 2). So the changed nodes are none,
    # node 3, node 1: their number, by opcode 0, 1 and 2, and the sums of both numeric features.
    changed = [
        [first, equal, 1 / 3, 1 / 3, first, 1 / 3],
        [2 / 3, equal, 1 / 3, third, third, third],
        [2 / 3, equal, third, 1 / 3, second, 1 / 3],
    ]
    np.testing.assert_allclose(of_changed, changed, rtol=1e-6)
    np.testing.assert_allclose(rows[:, changed_column(SIZES)], [first, 2 / 3, 2 / 3], rtol=1e-6)


def test_a_rank_is_the_share_of_references_below(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_features(nodes=200, distinct=300, dtype=np.float32)
    whole = everything(graph, RANDOM)
    configured = whole[:, 11:]
    assert (configured.min(), configured.max()) == (np.float32(1 / 600), np.float32(599 / 600))
    np.testing.assert_allclose(configured.mean(axis=0), 0.5, rtol=1e-5)
    monkeypatch.setattr("hlorank.models.baselines.pooled_features._MAX_REFERENCES", 100)
    some = everything(graph, RANDOM)
    assert np.abs(some - whole).max() < 0.2
    assert {round(float(200 * value), 3) % 1 for value in some[:, 11]} == {0.0}


def test_neither_order_nor_sizes_nor_memory_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_features(distinct=11, dtype=np.float32)  # odd, so that no node has two most frequent layouts
    whole, layouts, rng = everything(graph, RANDOM), graph.configurations, np.random.default_rng(3)
    assert isinstance(layouts, LayoutFeatures)
    assert len(np.unique(whole, axis=0)) == 11

    order = rng.permutation(graph.nodes)
    place = np.argsort(order)[layouts.node_ids]  # new numbers of the configurable nodes
    moved = replace(layouts, node_ids=np.sort(place), codes=layouts.codes[:, np.argsort(place)])
    shuffled = replace(graph, node_feat=graph.node_feat[order], opcode=graph.opcode[order], configurations=moved)
    np.testing.assert_allclose(everything(shuffled, RANDOM), whole, atol=1e-6)

    order = rng.permutation(graph.distinct)
    shuffled = replace(graph, configurations=replace(layouts, codes=layouts.codes[order]))
    np.testing.assert_array_equal(everything(shuffled, RANDOM), whole[order])
    np.testing.assert_array_equal(PooledGraph(graph, RANDOM).rows(np.array([2, 0, 2])), whole[[2, 0, 2]])
    assert PooledGraph(graph, RANDOM).rows(np.arange(0)).shape == (0, pooled_columns(RANDOM))

    split = layout_features(  # rows of the codebook that differ in sizes only, at different nodes
        layouts.node_ids,
        np.repeat(layouts.codebook, 2, axis=0),
        np.repeat(layouts.sizes, 2, axis=0) + np.tile([[0], [1]], (3, 1)).astype(np.float32),
        2 * layouts.codes + (np.arange(len(layouts.node_ids)) % 2).astype(np.uint8),
        np.repeat(layouts.costs, 2, axis=0),
    )
    np.testing.assert_array_equal(everything(replace(graph, configurations=split), RANDOM), whole)
    for block in ("models.baselines.pooled_features._CHUNK_BYTES", "featurize.features._BLOCK_BYTES"):
        monkeypatch.setattr(f"hlorank.{block}", 500)
    np.testing.assert_array_equal(everything(graph, RANDOM), whole)


def test_a_tile_keeps_its_features() -> None:
    sizes = InputSizes("tile", node_columns=4, opcodes=6, tile_columns=5)
    graph = make_features("tile", dtype=np.float32)
    rows = everything(graph, sizes)
    assert isinstance(graph.configurations, TileFeatures)
    np.testing.assert_array_equal(rows[:, -5:], graph.configurations.feat)
    assert rows.shape == (12, 1 + 6 + 4 + 5)
    assert len(np.unique(rows[:, :-5], axis=0)) == 1


def test_copies_are_summed_and_ranked_and_no_node_need_be_configurable(known: GraphFeatures) -> None:
    layouts = known.configurations
    assert isinstance(layouts, LayoutFeatures)
    costs = np.array([[0, 0, 1], [0.5, 0.25, 0.5]], dtype=np.float32)
    moved = everything(replace(known, configurations=replace(layouts, costs=costs)), SIZES)[:, -3:]
    np.testing.assert_allclose(moved, np.array([[3, 3, 3], [1, 1, 5], [5, 5, 1]]) / 6, rtol=1e-6)
    nothing = layout_features(
        np.arange(0), np.zeros((0, 18), np.int8), np.zeros((0, 18), np.float32), np.zeros((1, 0), np.uint8)
    )
    rows = everything(replace(known, configurations=nothing), SIZES)
    np.testing.assert_array_equal(rows[:, :6], everything(known, SIZES)[:1, :6])
    np.testing.assert_array_equal(rows[:, 6:], 0.5)  # of a single configuration


ROW, COLUMN, NONE = [1, 0], [0, 1], list[int]()


def padded(layout: list[int]) -> list[int]:
    return [*layout, *[-1] * (6 - len(layout))]


def tensor(
    column: int = -1,
    *,
    any_layout: bool = False,
    last: bool = False,
    transposed: bool = False,
    given: Sequence[int] = (1, 0),
) -> list[int]:
    """Return a tensor (100, 50) of 4 bytes an element, or the transpose of one."""
    axes, dims = ([1, 0], [50, 100]) if transposed else ([0, 1], [100, 50])
    return [column, any_layout, last, 4, *axes, 2, 3, 4, 5, *dims, 0, 0, 0, 0, *padded([*given])]


def configured(
    tensors: list[list[int]], uses: list[list[int]], configurations: list[list[list[list[int]]]]
) -> LayoutFeatures:
    """Make layout features from the layouts of output, input and kernel, for each configuration and node."""
    rows = np.array([[[*chain.from_iterable(map(padded, node))] for node in one] for one in configurations], np.int8)
    codebook, numbers = np.unique(rows.reshape(-1, 18), axis=0, return_inverse=True)
    codes = numbers.reshape(rows.shape[:2]).astype(np.uint8)
    layouts = layout_features(np.arange(rows.shape[1]), codebook, np.zeros(codebook.shape, np.float32), codes)
    return replace(layouts, tensors=np.array(tensors, np.int32), uses=np.array(uses, np.int32).reshape(-1, 3))


def copied(layouts: LayoutFeatures) -> list[dict[str, float]]:
    """Return the bytes that each configuration copies, by kind; a row of (100, 50) has 200 bytes."""
    columns = CopiedBytes(layouts)(np.arange(len(layouts.codes)))
    assert columns.shape == (len(layouts.codes), COPY_COLUMNS)
    each = columns.reshape(len(columns), len(KINDS), READS)[..., :-1].sum(axis=2)
    return [{kind: float(size) for kind, size in zip(KINDS, row, strict=True) if size} for row in each]


SIZE = 100.0 * 50 * 4


def test_a_configured_node_copies_its_operand_and_its_result() -> None:
    """A parameter, and a configured node that returns its result."""
    layouts = configured(
        [tensor(), tensor(0, last=True)],
        [[0, 1, 1]],
        [[[ROW, ROW, NONE]], [[NONE, NONE, NONE]], [[ROW, COLUMN, NONE]], [[COLUMN, ROW, NONE]], [[COLUMN] * 3]],
    )
    before = {"for a configured user": SIZE, "inside, of operands": SIZE}
    after = {"inside, of results": SIZE, "at the end": SIZE}
    assert copied(layouts) == [{}, {}, before, after, before | after]


def test_entry_layouts_are_where_copies_begin_and_end() -> None:
    """A parameter and a result that callers want column-major, of a node that computes on row-major tensors."""
    layouts = configured(
        [tensor(given=COLUMN), tensor(0, last=True, given=COLUMN)],
        [[0, 1, 1]],
        [[[NONE, NONE, NONE]], [[COLUMN, COLUMN, NONE]], [[ROW, ROW, NONE]]],
    )
    default = {"for a configured user": SIZE, "at the end": SIZE}
    assert copied(layouts) == [default, {"inside, of operands": SIZE, "inside, of results": SIZE}, default]


def test_what_takes_any_layout_has_the_first_that_is_demanded() -> None:
    """A parameter, its negative, and two configured users of it."""
    layouts = configured(
        [tensor(), tensor(any_layout=True), tensor(0), tensor(1)],
        [[0, 1, 0], [1, 2, 1], [1, 3, 1]],
        [
            [[ROW, COLUMN, NONE], [ROW, ROW, NONE]],
            [[ROW, ROW, NONE], [ROW, COLUMN, NONE]],
            [[ROW, COLUMN, NONE], [ROW, COLUMN, NONE]],
            [[NONE] * 3, [ROW, COLUMN, NONE]],
        ],
    )
    inside = {"inside, of operands": SIZE}
    assert copied(layouts) == [
        {"for a configured user": SIZE, "for another user": SIZE, **inside},  # row-major again for the second
        {"for a configured user": SIZE, **inside},
        {"for another user": SIZE, "inside, of operands": 2 * SIZE},  # one copy for both
        {"for another user": SIZE, **inside},
    ]


def test_a_configured_result_spreads_and_a_transpose_renames_it() -> None:
    """A configured result, its transpose, and a configured user of that."""
    layouts = configured(
        [tensor(0), tensor(any_layout=True, transposed=True), tensor(1)],
        [[0, 1, 0], [1, 2, 1]],
        [[[COLUMN, NONE, NONE], [NONE] * 3], [[COLUMN, NONE, NONE], [ROW, ROW, NONE]], [[NONE] * 3, [ROW, ROW, NONE]]],
    )
    # Dimensions (0, 1) of the result are (1, 0) of the transpose, of which a column-major result is a row-major one.
    assert copied(layouts) == [{"inside, of results": SIZE}] * 2 + [{"for another user": SIZE}]


@pytest.mark.parametrize("other", [[0], [0, 1, 2], [0, 2], [1, 1], [-1, 0, 1]])
def test_what_is_no_layout_of_a_tensor_demands_nothing(other: list[int]) -> None:
    layouts = configured([tensor(), tensor(0)], [[0, 1, 1]], [[[ROW, other, NONE]], [[other, NONE, NONE]]])
    assert copied(layouts) == [{}, {}]


def test_configurations_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [NONE, ROW, COLUMN]
    nodes = [[a, b, NONE] for a in choices for b in choices]
    layouts = configured(
        [tensor(0), tensor(any_layout=True), tensor(1, last=True)],
        [[0, 1, 0], [1, 2, 1]],
        [[first, second] for first in nodes for second in nodes],
    )
    columns, rows = CopiedBytes(layouts), np.random.default_rng(0).permutation(81)
    expected = columns(np.arange(81))
    monkeypatch.setattr("hlorank.models.baselines.pooled_features._USES", 14)  # 7 configurations
    np.testing.assert_array_equal(columns(rows), expected[rows])
    assert columns(rows[:0]).shape == (0, COPY_COLUMNS)


def layout_rows(*layouts: list[int]) -> Int64:
    return np.array([padded(layout) for layout in layouts])


def test_bytes_by_how_they_are_read() -> None:
    shape = np.array([4, 1000, 300, 0, 0, 0])
    before = layout_rows([2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0])
    after = layout_rows([2, 1, 0], [2, 0, 1], [1, 2, 0], [0, 1, 2])
    total = 4 * 1000 * 300 * 2.0
    # In order; 1,000 lines of 64 bytes before one is read again; 4,000 lines.
    expected = np.zeros((4, READS))
    expected[1, [0, 6]] = total, total / 300
    expected[2, [3, 6]] = total
    expected[3, [3, 6]] = total
    sizes, item_bytes = np.tile(shape, (4, 1)), np.full(4, 2)
    np.testing.assert_array_equal(copied_bytes(before, after, sizes, item_bytes), expected)


@given(st.permutations(range(3)), st.permutations(range(3)), st.lists(st.integers(2, 9), min_size=3, max_size=3))
def test_iterations_until_a_line_is_reused_are_a_loop_s(before: list[int], after: list[int], dims: list[int]) -> None:
    sizes = np.array([[*dims, 0, 0, 0]])
    columns = copied_bytes(layout_rows(before), layout_rows(after), sizes, np.array([10**6]))[0]
    strides = {dim: int(np.prod([dims[one] for one in before[:place]])) for place, dim in enumerate(before)}
    grid = np.indices([dims[dim] for dim in reversed(after)]).reshape(3, -1)  # the minor dimension varies fastest
    addresses = np.array([strides[dim] for dim in reversed(after)]) @ grid
    assert (columns.sum() == 0) == (before == after)
    if before != after:
        again = 1 + int(np.argmax(addresses[1:] == 1))  # the line of address 0 holds address 1
        bounds = np.searchsorted([16e3, 48e3, 512e3, 4e6], 64 * again)
        assert columns[:-1].argmax() == (0 if before[0] == after[0] else 1 + bounds)
