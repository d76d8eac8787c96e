"""Bytes that configurations of layouts make a program copy."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_TENSORS, Int64
from hlorank.featurize.copies import AXES, COLUMN, FLEXIBLE, ITEM_BYTES, LAST, SHAPE
from hlorank.featurize.features import LayoutFeatures
from hlorank.featurize.moves import without_ones

KINDS = ("for a configured user", "for another user", "inside, of operands", "inside, of results", "at the end")
READS = 7
COPY_COLUMNS = len(KINDS) * READS
"""Columns of `CopiedBytes`."""

_LINE_BYTES = 64
_CACHES = np.array([16e3, 48e3, 512e3, 4e6])
_CHUNK = 1024

Numbers = NDArray[np.int16]
"""(configurations,), rows of a table of layouts; 0 is none."""


class CopiedBytes:
    """Bytes that the configurations of a graph copy, by where and by how a copy reads them.

    The layouts of tensors are assigned as `hlorank.featurize.copies` says. The output of a configurable node has its
    configured layout, or else is row-major. A tensor that takes any layout has that which its first user demands, of
    those that demand one, or else that of its first operand, or else is row-major. There is a copy for each layout that
    the users of a tensor demand and it has not. A configurable node computes on row-major tensors, as XLA:CPU does, so
    it copies each operand from its configured layout, and its result to it; and the program returns row-major tensors.
    What is no permutation of all dimensions counts as no layout.

    A copy is a loop nest over the new layout, from the minor dimension outwards. It reads in order if both layouts have
    the same minor dimension. Otherwise each element lies in another cache line, and a line is read again after as many
    iterations as the loops within the old minor dimension have. For each of the `KINDS` there are `READS` columns: the
    bytes of tensors that are read in order; of those of which up to 16 kB, 48 kB, 512 kB, 4 MB or more are touched
    before a line is read again, about the sizes of caches; and of all, divided by the elements that stay contiguous.

    Args:
        layouts: the configurations.
    """

    def __init__(self, layouts: LayoutFeatures) -> None:
        self._layouts, self._tensors = layouts, np.asarray(layouts.tensors).astype(np.int64)
        uses = np.asarray(layouts.uses).astype(np.int64)
        self._uses: list[list[list[int]]] = _grouped(uses, 0, len(self._tensors))
        self._operands = [[use[0] for use in some] for some in _grouped(uses[uses[:, 2] == 0], 1, len(self._tensors))]
        self._bytes: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.bool_]]] = {}

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the columns of some distinct configurations, (configurations, `COPY_COLUMNS`) float64."""
        parts = [self._copied(rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)]
        return np.concatenate(parts) if parts else np.zeros((0, COPY_COLUMNS))

    def _copied(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        configured = self._configured[:, np.asarray(self._layouts.codes[rows]).T]  # (slots, nodes, configurations)
        result = np.zeros((len(KINDS), len(rows), READS))
        assigned = self._assign(configured)
        for tensor, have in enumerate(assigned):
            column, own = self._tensors[tensor, COLUMN], np.full_like(have, self._own[tensor])
            wanted = list[Numbers]()
            for _, user, slot in sorted(self._uses[tensor], key=lambda use: not use[2]):
                want = self._demand(configured, assigned, tensor, user, slot)
                new = np.logical_and.reduce([want != other for other in wanted]) if wanted else True
                self._add(result[0 if slot else 1], tensor, have, np.where(new, want, 0))
                wanted.append(want)
                if slot:
                    self._add(result[2], tensor, want, own)
            if column >= 0:
                self._add(result[3], tensor, own, self._fitting(tensor, configured[0, column]))
            if self._tensors[tensor, LAST]:
                self._add(result[4], tensor, have, own)
        return np.concatenate(list(result), axis=1)

    def _assign(self, configured: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return the layouts of tensors, (tensors, configurations); `configured` is (slots, nodes, configurations)."""
        columns, flexible = self._tensors[:, COLUMN], np.flatnonzero(self._tensors[:, FLEXIBLE]).tolist()
        assigned = np.zeros((len(columns), configured.shape[2]), dtype=np.int16)
        for tensor in np.flatnonzero(columns >= 0).tolist():
            chosen = self._fitting(tensor, configured[0, columns[tensor]])
            assigned[tensor] = np.where(chosen, chosen, self._own[tensor])
        for tensor in flexible[::-1]:
            for _, user, slot in self._uses[tensor]:
                if (free := assigned[tensor] == 0).any():
                    assigned[tensor, free] = self._demand(configured, assigned, tensor, user, slot)[free]
        for tensor in flexible:
            for operand in self._operands[tensor]:
                if (free := assigned[tensor] == 0).any():
                    assigned[tensor, free] = self._moved[tensor][1][assigned[operand, free]]
        return np.asarray(np.where(assigned, assigned, self._own[:, None]))

    def _demand(
        self, configured: NDArray[np.int16], assigned: NDArray[np.int16], tensor: int, user: int, slot: int
    ) -> Numbers:
        """Return the layout that a user demands of a tensor."""
        if slot:
            return self._fitting(tensor, configured[slot, self._tensors[user, COLUMN]])
        demanded: Numbers = self._moved[user][0][assigned[user]]
        return demanded

    def _fitting(self, tensor: int, numbers: Numbers) -> Numbers:
        """Return layouts of all dimensions of a tensor, and none for others."""
        return np.where(self._lengths[numbers] == self._lengths[self._own[tensor]], numbers, 0).astype(np.int16)

    def _add(self, result: NDArray[np.float64], tensor: int, before: Numbers, after: Numbers) -> None:
        """Add the bytes of copies between two layouts of a tensor to (configurations, `READS`) columns."""
        moved = np.flatnonzero((before != after) & (before != 0) & (after != 0))
        if len(moved):
            shape, own = self._tensors[tensor, SHAPE], self._own[tensor]
            alike = np.flatnonzero(self._lengths == self._lengths[own])
            key = (*shape.tolist(), int(self._tensors[tensor, ITEM_BYTES]))
            first, second = (alike.searchsorted(one[moved]) for one in (before, after))
            pair = first * len(alike) + second
            if key not in self._bytes:  # of up to 720 x 720 pairs few occur, and only their pages take memory
                self._bytes[key] = np.zeros((len(alike) ** 2, READS)), np.zeros(len(alike) ** 2, dtype=bool)
            table, known = self._bytes[key]
            if len(missing := np.unique(pair[~known[pair]])):
                layouts = without_ones(self._table[alike], np.append(np.maximum(shape, 1), 1))
                source, target = np.divmod(missing, len(alike))
                table[missing] = copied_bytes(layouts[source], layouts[target], shape, key[-1])
                known[missing] = True
            result[moved] += table[pair]

    @cached_property
    def _numbered(self) -> tuple[Int64, NDArray[np.int16], NDArray[np.int16]]:
        """The table of layouts, and the numbers of those of the codebook, (rows, slots), and of row-major tensors."""
        slots = self._layouts.codebook.reshape(-1, LAYOUT_DIMS).astype(np.int64)
        slots = np.where(_permutes(slots)[:, None], slots, -1)
        own = _row_major((self._tensors[:, SHAPE] > 0).sum(axis=1))
        table = np.unique(np.concatenate([np.full((1, LAYOUT_DIMS), -1), slots, own]), axis=0)
        transposes = np.unique(self._tensors[:, AXES], axis=0)
        while True:
            moved = [_renamed(table, one) for axes in transposes for one in (axes, np.argsort(axes))]
            grown = np.unique(np.concatenate([table, *moved]), axis=0)
            if len(grown) == len(table):
                break
            table = grown
        numbers = _find(table, np.concatenate([slots, own]))
        return table, numbers[: len(slots)].reshape(-1, len(LAYOUT_TENSORS)), numbers[len(slots) :]

    @property
    def _table(self) -> Int64:
        return self._numbered[0]

    @property
    def _own(self) -> NDArray[np.int16]:
        return self._numbered[2]

    @cached_property
    def _configured(self) -> NDArray[np.int16]:
        return np.ascontiguousarray(self._numbered[1].T)

    @cached_property
    def _lengths(self) -> Int64:
        return np.asarray((self._table >= 0).sum(axis=1))

    @cached_property
    def _moved(self) -> list[tuple[NDArray[np.int16], NDArray[np.int16]]]:
        """Of each tensor, the number of each layout of it for its operand, and of each of its operand for it."""
        known: dict[tuple[int, ...], tuple[NDArray[np.int16], NDArray[np.int16]]] = {}
        found = []
        for axes in self._tensors[:, AXES]:
            key = tuple(axes.tolist())
            if key not in known:
                to_operand, from_operand = (_renamed(self._table, one) for one in (axes, np.argsort(axes)))
                known[key] = _find(self._table, to_operand), _find(self._table, from_operand)
            found.append(known[key])
        return found


def _grouped(uses: Int64, column: int, count: int) -> list[list[list[int]]]:
    """Return the uses by the tensor in a column, for each of `count` tensors."""
    ordered = uses[np.argsort(uses[:, column], kind="stable")]
    bounds = np.searchsorted(ordered[:, column], np.arange(count + 1))
    return [ordered[a:b].tolist() for a, b in pairwise(bounds)]


def _row_major(ranks: Int64) -> Int64:
    """Return the row-major layout of each number of dimensions, (ranks, 6)."""
    return np.asarray(np.maximum(ranks[:, None] - 1 - np.arange(LAYOUT_DIMS), -1))


def _permutes(layouts: Int64) -> NDArray[np.bool_]:
    """Return which layouts, (layouts, 6), are permutations of their first dimensions, padded with -1."""
    ranks = (layouts >= 0).sum(axis=1)
    in_front = (layouts >= 0) == (np.arange(LAYOUT_DIMS) < ranks[:, None])
    return np.asarray(in_front.all(axis=1) & (np.sort(layouts, axis=1) == _row_major(ranks)[:, ::-1]).all(axis=1))


def _renamed(table: Int64, axes: Int64) -> Int64:
    """Return layouts (..., 6) with other names of dimensions, those beyond the transposed ones kept."""
    return np.asarray(np.where(table >= 0, axes[table], -1))


def _find(table: Int64, layouts: Int64) -> NDArray[np.int16]:
    """Return the rows of a sorted table where layouts are."""
    radix = (LAYOUT_DIMS + 1) ** np.arange(LAYOUT_DIMS)[::-1]
    return np.searchsorted((table + 1) @ radix, (layouts + 1) @ radix).astype(np.int16)


def copied_bytes(before: Int64, after: Int64, shape: Int64, item_bytes: int) -> NDArray[np.float64]:
    """Return the bytes of copies of one tensor, by how they are read.

    Args:
        before: (copies, 6) int64, minor_to_major without dimensions of size 1, padded with -1.
        after: the same for the layout of the copy, of the same dimensions.
        shape: (6,) the dimensions, 0 for none.
        item_bytes: bytes of an element.

    Returns:
        (copies, `READS`) float64, zeros for equal layouts; see `CopiedBytes`.
    """
    sizes = np.append(np.maximum(shape, 1), 1).astype(np.float64)
    total = sizes.prod() * item_bytes
    same = np.logical_and.accumulate(before == after, axis=1)
    minor = (after == before[:, :1]).argmax(axis=1)
    iterations = np.cumprod(np.insert(sizes[after], 0, 1, axis=1), axis=1)[np.arange(len(after)), minor]
    touched = np.minimum(iterations * _LINE_BYTES, total)
    columns = np.zeros((len(before), READS))
    columns[np.arange(len(before)), np.where(minor == 0, 0, 1 + np.searchsorted(_CACHES, touched))] = total
    columns[:, -1] = total / np.where(same, sizes[before], 1).prod(axis=1)
    return np.where(same[:, -1:], 0, columns)
