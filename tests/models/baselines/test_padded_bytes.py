"""Padded bytes: exact on graphs made by hand, independent of order and memory."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from hlorank.models.baselines.padded_bytes import PaddedBytes
from tests.models.baselines.test_pooled_features import configured, padded

ROW, TURNED, OTHER, NONE = [2, 1, 0], [1, 2, 0], [0, 1, 2], list[int]()
# Bytes of float32 (2, 100, 50): minor dimensions are padded to 128, the next ones to multiples of 8, or of 2.
OF_ROW, OF_TURNED, OF_OTHER = 2 * 104 * 128 * 4, 2 * 56 * 128 * 4, 50 * 104 * 128 * 4


def tensor(column: int = -1, *, last: bool = False, axes: Sequence[int] = (0, 1, 2)) -> list[int]:
    """Return a tensor (2, 100, 50) of 4 bytes an element: of a configurable node, or of an operation of any layout."""
    dims = [(2, 100, 50)[axis] for axis in axes]
    return [column, column < 0, last, 4, *axes, 3, 4, 5, *dims, 0, 0, 0, *padded(ROW)]


def moved(tensors: list[list[int]], uses: list[list[int]], configurations: list[list[list[list[int]]]]) -> list[float]:
    layouts = configured(tensors, uses, configurations)
    (column,) = PaddedBytes(layouts)(np.arange(len(layouts.codes))).T
    return [*map(float, column)]


def test_another_order_of_a_result_is_a_copy_and_what_is_returned_keeps_its_layout() -> None:
    assert moved(
        [tensor(0, last=True)], [], [[[layout, NONE, NONE]] for layout in (NONE, ROW, [2], TURNED, OTHER)]
    ) == [
        *[OF_ROW] * 3,  # a layout of the minor dimension has the others in their order
        OF_TURNED + OF_TURNED + OF_ROW,
        OF_ROW + 2 * (OF_ROW + OF_OTHER),
    ]


def test_an_operand_is_read_in_two_orders_and_copied_from_others_once() -> None:
    """A configurable node, another one that reads its result twice."""
    tensors, uses, rest = [tensor(0), tensor(1)], [[0, 1, 1], [0, 1, 2]], [NONE, NONE]
    results = [[[layout, *rest], [NONE, *rest]] for layout in (NONE, TURNED, OTHER)]
    demands = [[[NONE, *rest], [NONE, layout, NONE]] for layout in (TURNED, OTHER)]
    assert moved(tensors, uses, results + demands) == [
        2 * OF_ROW + 2 * OF_ROW,
        OF_TURNED + OF_ROW + 2 * OF_TURNED,
        2 * OF_ROW + 2 * OF_ROW + (OF_ROW + OF_OTHER) + (OF_OTHER + OF_ROW),
        2 * OF_ROW + OF_TURNED + OF_ROW + (OF_ROW + OF_TURNED),
        2 * OF_ROW + 2 * OF_ROW + (OF_ROW + OF_OTHER) + (OF_OTHER + OF_ROW),
    ]


def test_the_last_node_with_another_layout_decides_for_a_group_and_a_transpose_renames() -> None:
    """Two configurable nodes, their sum, and the transpose of it, which is returned."""
    tensors = [tensor(0), tensor(1), tensor(), tensor(last=True, axes=(2, 1, 0))]
    uses, at_end = [[0, 2, 0], [1, 2, 0], [2, 3, 0]], OF_ROW + OF_TURNED
    pairs = [[[layout, NONE, NONE] for layout in pair] for pair in product((NONE, TURNED), repeat=2)]
    assert moved(tensors, uses, pairs) == [
        3 * OF_ROW,  # two results, and what is returned; no kernel reads the sum
        *[OF_ROW + 2 * OF_TURNED + (OF_ROW + OF_TURNED) + at_end] * 2,  # a copy of the other result
        3 * OF_TURNED + at_end,
    ]


def test_configurations_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [[result, operand, NONE] for result in (NONE, TURNED, OTHER) for operand in (NONE, TURNED)]
    layouts = configured(
        [tensor(0), tensor(), tensor(1)], [[0, 1, 0], [1, 2, 1]], [[*pair] for pair in product(nodes, nodes)]
    )
    each, rows = PaddedBytes(layouts), np.random.default_rng(0).permutation(36)
    expected = each(np.arange(36))
    monkeypatch.setattr("hlorank.models.baselines.padded_bytes._USES", 14)  # 7 configurations
    np.testing.assert_array_equal(each(rows), expected[rows])
    assert each(rows[:0]).shape == (0, 1)
