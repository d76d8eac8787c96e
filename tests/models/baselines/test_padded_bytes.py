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


def test_a_result_is_computed_in_the_order_in_which_it_is_used() -> None:
    """A configurable node whose result is returned, or whose negative another one reads, or which is read twice."""
    layouts = [[[layout, NONE, NONE]] for layout in (NONE, ROW, [1], TURNED, OTHER)]
    assert moved([tensor(0, last=True)], [], layouts) == [OF_ROW] * 5
    demands = [[*layout, [NONE, OTHER, NONE]] for layout in layouts]
    assert moved([tensor(0), tensor(), tensor(1)], [[0, 1, 0], [1, 2, 1]], demands) == [
        first + OF_ROW + OF_OTHER + OF_ROW + (first + OF_OTHER) + (OF_OTHER + OF_ROW)
        for first in (OF_ROW, OF_ROW, OF_TURNED, OF_TURNED, OF_ROW)  # [1] has the others in their order
    ]  # two results; the negative, written and read; copies of the result to it, and of the negative to be read
    pairs = [(ROW, TURNED), (TURNED, ROW), (OTHER, TURNED), (OTHER, OTHER)]
    demands = [[[OTHER, NONE, NONE], [NONE, *pair]] for pair in pairs]
    assert moved([tensor(0), tensor(1)], [[0, 1, 1], [0, 1, 2]], demands) == [
        OF_ROW + OF_ROW + OF_ROW + OF_TURNED,  # two results, and the first one as it is read
        OF_ROW + OF_TURNED + OF_TURNED + OF_ROW,
        OF_ROW + OF_TURNED + OF_ROW + OF_TURNED + (OF_TURNED + OF_OTHER) + (OF_OTHER + OF_ROW),
        OF_ROW + OF_ROW + OF_ROW + OF_ROW + (OF_ROW + OF_OTHER) + (OF_OTHER + OF_ROW),
    ]


def test_an_operand_is_read_in_two_orders_and_copied_from_others_once() -> None:
    """A program's parameter, a configurable node that reads it twice."""
    tensors, uses = [[-1, 0, *tensor()[2:]], tensor(0)], [[0, 1, 1], [0, 1, 2]]
    demands = [[[NONE, NONE, NONE]], [[NONE, TURNED, TURNED]], [[NONE, TURNED, NONE]], [[NONE, OTHER, OTHER]]]
    assert moved(tensors, uses, demands) == [
        OF_ROW + 2 * OF_ROW,
        OF_ROW + 2 * OF_TURNED + (OF_ROW + OF_TURNED),
        OF_ROW + OF_TURNED + OF_ROW + (OF_ROW + OF_TURNED),
        OF_ROW + 2 * OF_ROW + (OF_ROW + OF_OTHER) + (OF_OTHER + OF_ROW),
    ]


def test_the_last_node_with_another_layout_decides_for_a_group() -> None:
    """Two configurable nodes, their sum, its transpose, and the transpose's negative, which is returned."""
    transposed = tensor(axes=(2, 1, 0))
    negative = [-1, 1, 1, *tensor()[3:10], *transposed[10:]]
    tensors, uses = [tensor(0), tensor(1), tensor(), transposed, negative], [[0, 2, 0], [1, 2, 0], [2, 3, 0], [3, 4, 0]]
    pairs = [[[layout, NONE, NONE] for layout in pair] for pair in product((NONE, TURNED), repeat=2)]
    assert moved(tensors, uses, pairs) == [3 * OF_ROW, *[3 * OF_TURNED + (OF_ROW + OF_TURNED)] * 3]


def test_a_transpose_is_not_copied() -> None:
    """A parameter, its transpose, and a configurable node that reads the transpose in two orders."""
    tensors, uses = [[-1, 0, *tensor()[2:]], tensor(axes=(0, 2, 1)), tensor(0)], [[0, 1, 0], [1, 2, 1], [1, 2, 2]]
    assert moved(tensors, uses, [[[NONE, TURNED, ROW]]]) == [
        OF_ROW + OF_ROW + (OF_ROW + OF_TURNED) + (OF_TURNED + OF_ROW)  # result, transpose, reads, copied parameter
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
