"""Distinct rows, columns in blocks, and distances."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hlorank.featurize.features import column_blocks, distances, distinct_rows

ROWS = st.sampled_from([np.uint8, np.int64, np.float32]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.tuples(st.integers(0, 12), st.integers(0, 3)), elements=st.integers(0, 2))
)


@given(rows=ROWS)
@settings(deadline=None, max_examples=60)
def test_distinct_rows_agree_with_a_loop(rows: NDArray[Any]) -> None:
    plain = [tuple(row) for row in rows.tolist()]
    order = list(dict.fromkeys(plain))
    first, inverse = distinct_rows(rows)
    assert first.tolist() == [plain.index(row) for row in order]
    assert inverse.tolist() == [order.index(row) for row in plain]
    assert first.dtype == inverse.dtype == np.int64


def test_distinct_rows_in_any_memory_order_and_with_signs_of_zero() -> None:
    rows = np.asfortranarray([[1, 2, 3], [4, 5, 6], [1, 2, 7]])
    assert distinct_rows(rows[:, :2])[1].tolist() == [0, 1, 0]
    nearby = np.array([[0.0], [-0.0], [1.0], [np.nextafter(1.0, 2.0)]])
    assert distinct_rows(nearby)[1].tolist() == [0, 0, 1, 2]


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
    monkeypatch.setattr("hlorank.featurize.features._BLOCK_BYTES", block_bytes)
    array = np.arange(30, dtype=np.uint16).reshape(6, 5)
    parts, blocks = zip(*column_blocks(array), strict=True)
    assert [len(block) for block in blocks] == widths
    assert all(block.flags.c_contiguous for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), array.T)
    np.testing.assert_array_equal(np.concatenate([array[:, part] for part in parts], axis=1), array)
    assert list(column_blocks(array[:, :0])) == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [([2], [2, 1, 0, 1, -1, -1]), ([0, 4], [0, 1, 2, 3, 0, 1]), ([], [-1] * 6)],
)
def test_distances_over_edges_of_either_direction(sources: list[int], expected: list[int]) -> None:
    edges = np.array([[1, 0], [2, 1], [3, 2], [2, 1], [5, 4]])
    assert distances(edges, 6, np.array(sources, dtype=np.int64)).tolist() == expected
