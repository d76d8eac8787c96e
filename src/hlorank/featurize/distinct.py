"""Distinct rows, and blocks of columns, of large arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 16 * 2**20


def distinct_rows(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct rows of an array, in order of first appearance.

    The result is exact, as the bytes of whole rows are compared; 0.0 and -0.0 are equal. Time is linear in the size of
    the array, memory in the size of its distinct rows.

    Args:
        rows: (rows, columns) of integers or floating-point numbers.

    Returns:
        The index at which each distinct row first appears, (distinct,) int64, and the distinct row of each row,
        (rows,) int64: `rows[first][inverse]` equals `rows`.

    Raises:
        ValueError: `rows` is not two-dimensional.
    """
    if rows.ndim != 2:
        raise ValueError(f"rows: expected two dimensions, found shape {rows.shape}")
    if np.issubdtype(rows.dtype, np.floating):
        rows = rows + rows.dtype.type(0)  # -0.0 becomes 0.0, which has other bytes
    seen: dict[bytes, int] = {}
    numbers = (seen.setdefault(row.tobytes(), len(seen)) for row in rows)
    inverse = np.fromiter(numbers, dtype=np.int64, count=len(rows))
    first = np.flatnonzero(np.diff(np.maximum.accumulate(inverse), prepend=-1))
    return first, inverse


def column_blocks(array: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the columns of an array stored row by row, in blocks that bound the memory.

    Yields:
        The range of the columns, and the columns as contiguous rows: (columns, rows).
    """
    step = max(1, _BLOCK_BYTES // max(1, array.itemsize * len(array)))
    for start in range(0, array.shape[1], step):
        part = slice(start, start + step)
        yield part, np.ascontiguousarray(array[:, part].T)
