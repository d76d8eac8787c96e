"""Distinct rows, and columns in blocks."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hlorank.featurize.distinct import column_blocks, distinct_rows

ROWS = st.sampled_from([np.uint8, np.int64, np.float32]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.tuples(st.integers(0, 12), st.integers(0, 3)), elements=st.integers(0, 2))
)


@given(rows=ROWS)
@settings(deadline=None, max_examples=60)
def test_agrees_with_a_loop_over_rows(rows: NDArray[Any]) -> None:
    plain = [tuple(row) for row in rows.tolist()]
    order = list(dict.fromkeys(plain))
    first, inverse = distinct_rows(rows)
    assert first.tolist() == [plain.index(row) for row in order]
    assert inverse.tolist() == [order.index(row) for row in plain]
    assert first.dtype == inverse.dtype == np.int64


def test_columns_in_any_memory_order() -> None:
    rows = np.asfortranarray([[1, 2, 3], [4, 5, 6], [1, 2, 7]])
    assert distinct_rows(rows[:, :2])[1].tolist() == [0, 1, 0]


def test_zero_equals_minus_zero_and_nearby_numbers_differ() -> None:
    rows = np.array([[0.0], [-0.0], [1.0], [np.nextafter(1.0, 2.0)]])
    assert distinct_rows(rows)[1].tolist() == [0, 0, 1, 2]


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\)"):
        distinct_rows(np.zeros(3))


def test_memory_is_linear_in_the_distinct_rows() -> None:
    def peak(count: int) -> int:
        rows = np.random.default_rng(0).integers(0, 14, (count, 200), dtype=np.uint8)
        tracemalloc.start()
        try:
            assert len(distinct_rows(rows)[0]) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2_000), peak(16_000)
    assert large < 8.5 * small
    assert large < 3 * 16_000 * 200


@pytest.mark.parametrize(("block_bytes", "widths"), [(1, [1] * 5), (24, [2, 2, 1]), (10**9, [5])])
def test_columns_are_read_in_blocks(block_bytes: int, widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.featurize.distinct._BLOCK_BYTES", block_bytes)
    array = np.arange(30, dtype=np.uint16).reshape(6, 5)
    parts, blocks = zip(*column_blocks(array), strict=True)
    assert [len(block) for block in blocks] == widths
    assert all(block.flags.c_contiguous for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), array.T)
    np.testing.assert_array_equal(np.concatenate([array[:, part] for part in parts], axis=1), array)
    assert list(column_blocks(array[:, :0])) == []
