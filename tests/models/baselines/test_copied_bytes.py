"""Bytes that are copied: hand-made programs, and a loop over all elements."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlorank.data.graph import Int64
from hlorank.featurize.features import LayoutFeatures
from hlorank.featurize.relayout import READS, copied_bytes
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS, KINDS, CopiedBytes
from tests.layouts import layout_features

ROW, COLUMN, NONE = [1, 0], [0, 1], list[int]()


def padded(layout: list[int]) -> list[int]:
    return [*layout, *[-1] * (6 - len(layout))]


def tensor(column: int = -1, *, any_layout: bool = False, last: bool = False, transposed: bool = False) -> list[int]:
    """Return a tensor (100, 50) of 4 bytes an element, or the transpose of one."""
    axes, dims = ([1, 0], [50, 100]) if transposed else ([0, 1], [100, 50])
    return [column, any_layout, last, 4, *axes, 2, 3, 4, 5, *dims, 0, 0, 0, 0]


def configured(
    tensors: list[list[int]], uses: list[list[int]], configurations: list[list[list[list[int]]]]
) -> LayoutFeatures:
    """Make layout features from the layouts of output, input and kernel, for each configuration and node."""
    rows = np.array(
        [[[*chain.from_iterable(map(padded, node))] for node in one] for one in configurations], dtype=np.int8
    )
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
    monkeypatch.setattr("hlorank.models.baselines.copied_bytes._USES", 14)  # 7 configurations
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
def test_iterations_before_a_line_is_read_again_are_those_of_a_loop(
    before: list[int], after: list[int], dims: list[int]
) -> None:
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
