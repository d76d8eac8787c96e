"""The layouts of a graph's tensors by number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.data.graph import Int64
from hlorank.featurize import relayout
from hlorank.featurize.columns import row_major

Numbers = NDArray[np.int16]
"""(tensors or uses of them, configurations), numbers of layouts; 0 is none."""


class LayoutTable:
    """The layouts of a graph's tensors by number: minor_to_major padded with -1; number 0 has no dimension."""

    def __init__(self, codebook: NDArray[np.int8], tensors: Int64, complete: bool = False) -> None:
        slots = codebook.reshape(-1, LAYOUT_DIMS).astype(np.int64)
        slots = slots if complete else np.where(_permutes(slots)[:, None], slots, -1)
        ranks = (tensors[:, relayout.SHAPE] > 0).sum(axis=1)
        own = row_major(ranks)
        given = tensors[:, relayout.GIVEN]
        given = np.where(
            _permutes(given)[:, None] & ((given >= 0) == (own >= 0)).all(axis=1, keepdims=True), given, own
        )
        parts = [np.full((1, LAYOUT_DIMS), -1), slots, own, given]
        if complete:
            parts += [_completed(slots, rank) for rank in np.unique(ranks)]
        table = np.unique(np.concatenate(parts), axis=0)
        transposes, self._transpose = np.unique(tensors[:, relayout.AXES], axis=0, return_inverse=True)
        renamings = np.stack([transposes, np.argsort(transposes, axis=1)])
        while True:
            moved = [_renamed(table, axes) for axes in renamings.reshape(-1, LAYOUT_DIMS)]
            grown = np.unique(np.concatenate([table, *moved]), axis=0)
            if len(grown) == len(table):
                break
            table = grown
        self.layouts, self.lengths = table, (table >= 0).sum(axis=1)  # with the number of their dimensions
        self.of_code = _find(table, slots).reshape(-1, len(LAYOUT_TENSORS)).T  # (3, U), the numbers of the codebook
        self.own, self.given = _find(table, own), _find(table, given)  # of each tensor, row-major and at entry
        alike = self.lengths == np.arange(LAYOUT_DIMS + 1)[:, None]
        self._fitting = np.where(alike, np.arange(len(table)), 0).astype(np.int16)
        for rank in np.unique(ranks) if complete else ():
            self._fitting[rank, self.of_code] = _find(table, _completed(slots, rank)).reshape(-1, len(LAYOUT_TENSORS)).T
        renamed = [_find(table, _renamed(table, axes)) for axes in renamings.reshape(-1, LAYOUT_DIMS)]
        self._renamed = np.array(renamed, np.int16).reshape(2, len(transposes), len(table))

    def fitting(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts that have all dimensions of their tensors, none for others."""
        return np.asarray(self._fitting[self.lengths[self.own[tensors]][:, None], numbers])

    def for_operands(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts that the operands of tensors need so that the tensors have layouts without a copy."""
        return np.asarray(self._renamed[0, self._transpose[tensors][:, None], numbers])

    def from_operands(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts that tensors have without a copy, given the layouts of their operands."""
        return np.asarray(self._renamed[1, self._transpose[tensors][:, None], numbers])


def _completed(layouts: Int64, rank: int) -> Int64:
    """Return layouts of the minor dimensions with the others, row-major, none for those of other dimensions."""
    others = row_major(np.array([rank]))
    named = (layouts[:, :, None] == others[:, None]).any(axis=1)
    others = np.take_along_axis(
        np.repeat(others, len(layouts), axis=0), np.argsort(named, axis=1, kind="stable"), axis=1
    )
    count = (layouts >= 0).sum(axis=1)[:, None]
    place = np.arange(LAYOUT_DIMS)
    later = np.take_along_axis(others, np.clip(place - count, 0, LAYOUT_DIMS - 1), axis=1)
    result = np.where(place < count, layouts, np.where(place < rank, later, -1))
    return np.where((_permutes(result) & (count[:, 0] > 0) & ((result >= 0).sum(axis=1) == rank))[:, None], result, -1)


def _permutes(layouts: Int64) -> NDArray[np.bool_]:
    """Return which layouts, (layouts, 6), are permutations of their first dimensions, padded with -1."""
    ranks = (layouts >= 0).sum(axis=1)
    in_front = (layouts >= 0) == (np.arange(LAYOUT_DIMS) < ranks[:, None])
    complete = np.sort(layouts, axis=1) == row_major(ranks)[:, ::-1]
    return np.asarray((in_front & complete).all(axis=1))


def _renamed(table: Int64, axes: Int64) -> Int64:
    """Return layouts (..., 6) with other names of dimensions; dimensions beyond the transposed ones keep theirs."""
    return np.asarray(np.where(table >= 0, axes[table], -1))


def _find(table: Int64, layouts: Int64) -> NDArray[np.int16]:
    """Return the rows of layouts in a sorted table."""
    radix = (LAYOUT_DIMS + 1) ** np.arange(LAYOUT_DIMS)[::-1]
    return np.searchsorted((table + 1) @ radix, (layouts + 1) @ radix).astype(np.int16)
