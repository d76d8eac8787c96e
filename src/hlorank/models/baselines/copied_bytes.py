"""Bytes that configurations of layouts make a program copy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.data.graph import Int64
from hlorank.featurize.features import LayoutFeatures, in_chunks
from hlorank.featurize.relayout import AXES, COLUMN, FLEXIBLE, ITEM_BYTES, LAST, READS, SHAPE, copied_bytes, row_major

KINDS = ("for a configured user", "for another user", "inside, of operands", "inside, of results", "at the end")
COPY_COLUMNS = len(KINDS) * READS
"""Columns of `CopiedBytes`."""

_USES = 2**22  # uses of tensors, times configurations, that are in memory at once

Numbers = NDArray[np.int16]
"""(tensors or uses of them, configurations), numbers of layouts; 0 is none."""


class CopiedBytes:
    """Bytes that the configurations of a graph copy, by where and by how a copy reads them.

    The layouts of tensors are assigned as `hlorank.featurize.relayout` says. The output of a configurable node has its
    configured layout, or else is row-major. A tensor that takes any layout has that which its first user demands, of
    those that demand one, or else that of its first operand, or else is row-major. There is a copy for each layout that
    the users of a tensor demand and it has not. A configurable node computes on row-major tensors, as XLA:CPU does, so
    it copies each operand from its configured layout, and its result to it; and the program returns row-major tensors.
    What is no permutation of all dimensions counts as no layout.

    For each of the `KINDS` there are the `READS` columns of `copied_bytes`.
    """

    def __init__(self, layouts: LayoutFeatures) -> None:
        tensors, uses = (np.asarray(one).astype(np.int64) for one in (layouts.tensors, layouts.uses))
        self._codes, self._tensors = layouts.codes, tensors
        self._uses = uses[np.lexsort((uses[:, 2] == 0, uses[:, 0]))]  # of a tensor, those of configurable nodes first
        levels = [_levels(uses, target, len(tensors)) for target in (0, 1)]
        self._from_users = _stages(uses[tensors[uses[:, 0], FLEXIBLE] > 0], 0, levels[0])
        self._from_operands = _stages(uses[uses[:, 2] == 0], 1, levels[1])
        self._layouts = _LayoutTable(layouts.codebook, tensors)
        shapes = np.column_stack([tensors[:, SHAPE], tensors[:, ITEM_BYTES]])
        self._shapes, self._shape_of = np.unique(shapes, axis=0, return_inverse=True)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the columns of some distinct configurations, (configurations, `COPY_COLUMNS`) float64."""
        return in_chunks(self._copied, rows, _USES // max(1, len(self._uses)))

    def _copied(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        configured = np.ascontiguousarray(self._layouts.of_code[:, np.asarray(self._codes[rows]).T])
        own, columns, tensors = self._layouts.own, self._tensors[:, COLUMN], self._uses[:, 0]
        outputs, last = np.flatnonzero(columns >= 0), np.flatnonzero(self._tensors[:, LAST])
        chosen = self._layouts.fitting(outputs, configured[0, columns[outputs]])
        assigned = np.zeros((len(columns), len(rows)), dtype=np.int16)
        assigned[outputs] = np.where(chosen, chosen, own[outputs, None])
        self._spread(configured, assigned)
        wanted = self._demands(configured, assigned, self._uses)
        first, sums = self._first_ones(wanted), self._sums
        fixed, free = np.flatnonzero(self._uses[:, 2]), np.flatnonzero(self._uses[:, 2] == 0)
        parts = [
            *(sums(tensors[some], assigned[tensors[some]], first[some]) for some in (fixed, free)),
            sums(tensors[fixed], wanted[fixed], own[tensors[fixed], None]),
            sums(outputs, own[outputs, None], chosen),
            sums(last, assigned[last], own[last, None]),
        ]
        return np.concatenate(parts, axis=1)

    def _spread(self, configured: Numbers, assigned: Numbers) -> None:
        """Assign layouts to the tensors that have none; `configured` is (slots, nodes, configurations)."""
        for uses in self._from_users:
            before = assigned[uses[:, 0]]
            assigned[uses[:, 0]] = np.where(before, before, self._demands(configured, assigned, uses))
        for uses in self._from_operands:
            before, moved = assigned[uses[:, 1]], self._layouts.from_operands(uses[:, 1], assigned[uses[:, 0]])
            assigned[uses[:, 1]] = np.where(before, before, moved)
        assigned[:] = np.where(assigned, assigned, self._layouts.own[:, None])

    def _demands(self, configured: Numbers, assigned: Numbers, uses: Int64) -> Numbers:
        """Return the layouts that users demand of tensors."""
        fixed, free = np.flatnonzero(uses[:, 2]), np.flatnonzero(uses[:, 2] == 0)
        result = np.empty((len(uses), configured.shape[2]), dtype=np.int16)
        tensors, users, slots = uses[fixed].T
        result[fixed] = self._layouts.fitting(tensors, configured[slots, self._tensors[users, COLUMN]])
        result[free] = self._layouts.for_operands(uses[free, 1], assigned[uses[free, 1]])
        return result

    def _first_ones(self, wanted: Numbers) -> Numbers:
        """Return what each use demands, and none where one before it demands the same."""
        first, number = wanted.copy(), _numbers_within(self._uses[:, 0])
        for count in range(1, number.max(initial=0) + 1):
            uses = np.flatnonzero(number == count)
            others = wanted[uses - np.arange(1, count + 1)[:, None]]
            first[uses] = np.where((others == wanted[uses]).any(axis=0), 0, wanted[uses])
        return first

    def _sums(self, tensors: Int64, before: Numbers, after: Numbers) -> NDArray[np.float64]:
        """Return the bytes of copies of tensors, (configurations, `READS`), each sum independently of the others."""
        before, after = (np.ascontiguousarray(numbers.T) for numbers in np.broadcast_arrays(before, after))
        moved = (before != after) & (before != 0) & (after != 0)
        configuration, place = np.nonzero(moved)
        layouts = self._layouts.layouts
        sizes = len(self._shapes), len(layouts), len(layouts)
        of_copy = np.ravel_multi_index((self._shape_of[tensors][place], before[moved], after[moved]), sizes)
        number, distinct = pd.factorize(of_copy)
        shape, old, new = np.unravel_index(distinct, sizes)
        copies = copied_bytes(layouts[old], layouts[new], self._shapes[shape, :-1], self._shapes[shape, -1])
        ends = np.searchsorted(configuration, np.arange(len(moved) + 1))
        counts = csr_array((np.ones(len(number)), number, ends), shape=(len(moved), len(copies)))
        return np.asarray(counts @ copies)


class _LayoutTable:
    """The layouts of a graph's tensors by number: minor_to_major padded with -1, first that without a dimension."""

    def __init__(self, codebook: NDArray[np.int8], tensors: Int64) -> None:
        slots = codebook.reshape(-1, LAYOUT_DIMS).astype(np.int64)
        slots = np.where(_permutes(slots)[:, None], slots, -1)
        own = row_major((tensors[:, SHAPE] > 0).sum(axis=1))
        table = np.unique(np.concatenate([np.full((1, LAYOUT_DIMS), -1), slots, own]), axis=0)
        transposes, self._transpose = np.unique(tensors[:, AXES], axis=0, return_inverse=True)
        renamings = np.stack([transposes, np.argsort(transposes, axis=1)])
        while True:
            moved = [_renamed(table, axes) for axes in renamings.reshape(-1, LAYOUT_DIMS)]
            grown = np.unique(np.concatenate([table, *moved]), axis=0)
            if len(grown) == len(table):
                break
            table = grown
        self.layouts, self.lengths = table, (table >= 0).sum(axis=1)  # with the number of their dimensions
        self.of_code = _find(table, slots).reshape(-1, len(LAYOUT_TENSORS)).T  # (3, U), the numbers of the codebook
        self.own = _find(table, own)  # of each tensor, its row-major layout
        alike = self.lengths == np.arange(LAYOUT_DIMS + 1)[:, None]
        self._fitting = np.where(alike, np.arange(len(table)), 0).astype(np.int16)
        renamed = [_find(table, _renamed(table, axes)) for axes in renamings.reshape(-1, LAYOUT_DIMS)]
        self._renamed = np.array(renamed, np.int16).reshape(2, len(transposes), len(table))

    def fitting(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return layouts of all dimensions of tensors, and none for others."""
        return np.asarray(self._fitting[self.lengths[self.own[tensors]][:, None], numbers])

    def for_operands(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts that the operands of tensors need so that these have some layouts without a copy."""
        return np.asarray(self._renamed[0, self._transpose[tensors][:, None], numbers])

    def from_operands(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts that tensors have without a copy if their operands have some layouts."""
        return np.asarray(self._renamed[1, self._transpose[tensors][:, None], numbers])


def _numbers_within(groups: Int64) -> Int64:
    """Return the number of each element among those of its group, of sorted groups."""
    return np.asarray(np.arange(len(groups)) - np.searchsorted(groups, groups))


def _levels(uses: Int64, target: int, tensors: int) -> Int64:
    """Return the longest chain of tensors of any layout to each tensor, over its users (target 0) or operands (1)."""
    chains = uses[uses[:, 2] == 0]
    chains = chains[np.argsort(chains[:, target])][:: 1 if target else -1]
    level = [0] * tensors
    for ends in chains[:, :2].tolist():
        level[ends[target]] = max(level[ends[target]], level[ends[1 - target]] + 1)
    return np.array(level, dtype=np.int64)


def _stages(uses: Int64, target: int, levels: Int64) -> list[Int64]:
    """Divide uses by the level of their tensor in the column `target`, and then so that each tensor occurs once."""
    uses = uses[np.argsort(uses[:, target], kind="stable")]
    keys = np.stack([levels[uses[:, target]], _numbers_within(uses[:, target])])
    order = np.lexsort(keys[::-1])
    return np.split(uses[order], 1 + np.flatnonzero(np.diff(keys[:, order]).any(axis=0))) if len(uses) else []


def _permutes(layouts: Int64) -> NDArray[np.bool_]:
    """Return which layouts, (layouts, 6), are permutations of their first dimensions, padded with -1."""
    ranks = (layouts >= 0).sum(axis=1)
    in_front = (layouts >= 0) == (np.arange(LAYOUT_DIMS) < ranks[:, None])
    return np.asarray(in_front.all(axis=1) & (np.sort(layouts, axis=1) == row_major(ranks)[:, ::-1]).all(axis=1))


def _renamed(table: Int64, axes: Int64) -> Int64:
    """Return layouts (..., 6) with other names of dimensions, those beyond the transposed ones kept."""
    return np.asarray(np.where(table >= 0, axes[table], -1))


def _find(table: Int64, layouts: Int64) -> NDArray[np.int16]:
    """Return the rows of a sorted table where layouts are."""
    radix = (LAYOUT_DIMS + 1) ** np.arange(LAYOUT_DIMS)[::-1]
    return np.searchsorted((table + 1) @ radix, (layouts + 1) @ radix).astype(np.int16)
