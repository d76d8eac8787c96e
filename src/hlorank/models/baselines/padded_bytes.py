"""Bytes that a TPU moves in each layout configuration, padded to its tiles, by an assignment of layouts in brief."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Int64
from hlorank.featurize import relayout
from hlorank.featurize.features import LayoutFeatures, in_chunks
from hlorank.featurize.tile_padding import padded_orders
from hlorank.models.baselines.layout_table import LayoutTable, Numbers

_USES = 2**20  # uses of tensors, times configurations, that are in memory at once


class PaddedBytes:
    """Bytes that the kernels of a TPU read and write, (configurations, 1), after an assignment of layouts.

    Of each convolution and dot the compiler computes the result, and reads the operands, in one of two orders of the
    two minor dimensions; `computed_layouts` says which one it takes for a result where nothing is configured. The
    tensors of operations of any layout that have a link are a group and have one layout: of the configured layouts
    around it that are not the compiler's choice, that of the last node; without any, that which the first node around
    it computes. Parameters, and what is returned, have the layouts that they have where nothing is configured.

    There is a copy of each tensor that is used in an order other than its own. None is counted of a transpose, which is
    a copy itself, nor of a result for a use in one of its two orders: it is computed so, and has the bytes of the first
    such use. Without any it is computed in the configured order, if this is one of the two and it is not returned, else
    in the compiler's.

    Counted are results, operands and copies, and the tensors of groups that another kernel reads.
    """

    def __init__(self, layouts: LayoutFeatures) -> None:
        tensors, uses = (np.asarray(array).astype(np.int64) for array in (layouts.tensors, layouts.uses))
        table = LayoutTable(layouts.codebook, tensors, complete=True)
        self._codes, self._uses, self._table, self._columns = layouts.codes, uses, table, tensors[:, relayout.COLUMN]
        self._inside = inside = tensors[:, relayout.FLEXIBLE] > 0
        self._read, self._free = uses[uses[:, 2] > 0], uses[uses[:, 2] == 0]
        self._outputs = np.flatnonzero(self._columns >= 0)
        self._last = np.flatnonzero(tensors[:, relayout.LAST])
        self._returned = np.intersect1d(self._outputs, self._last)
        self._copyable = (tensors[:, relayout.AXES] == np.arange(LAYOUT_DIMS)).all(axis=1)  # all but transposes
        shapes = np.column_stack([tensors[:, relayout.SHAPE], tensors[:, relayout.ITEM_BYTES]])
        shapes, self._shape_of = np.unique(shapes, axis=0, return_inverse=True)
        self._bytes, self._order, self._turned = padded_orders(table.layouts, shapes)

        self._frame, links = np.zeros(len(tensors), dtype=np.int64), self._free[inside[self._free[:, :2]].all(axis=1)]
        ends = np.ones(len(links)), (links[:, 0], links[:, 1])
        _, self._group = connected_components(coo_array(ends, shape=(len(tensors),) * 2), directed=False)
        self._maps = np.array(self._maps_to_group(links), dtype=np.int16)
        self._inverse = np.argsort(self._maps, axis=1).astype(np.int16)
        around = self._free[(self._columns[self._free[:, 0]] >= 0) & inside[self._free[:, 1]]]
        self._asking = inside[self._read[:, 0]]
        self._results, self._operands = around[np.argsort(around[:, 0])], self._read[self._asking]
        nodes = np.concatenate([self._results[:, 0], self._operands[:, 1]])
        groups = self._group[np.concatenate([self._results[:, 1], self._operands[:, 0]])]
        self._seeds = np.lexsort((nodes, groups))  # what has a layout for a group, of each group by node
        self._seeded, self._starts = np.unique(groups[self._seeds], return_index=True)

        first = np.zeros(self._group.max(initial=-1) + 1, dtype=np.int16)
        first[self._group[::-1]] = table.own[::-1]
        first[self._group[self._results[::-1, 1]]] = self._seen(self._results[::-1], table.given[:, None])[:, 0]
        self._first = first
        self._default = np.where(inside, self._spread(first[:, None])[:, 0], table.given)
        given = self._free[(self._columns[self._free[:, 0]] < 0) & ~inside[self._free[:, 0]]][::-1]
        self._default[given[:, 0]] = table.for_operands(given[:, 1], self._default[given[:, 1], None])[:, 0]
        kernels = np.bincount(uses[:, 0], minlength=len(tensors)) != 1
        kernels[self._read[:, 0]] = True
        self._passed = np.flatnonzero(inside & kernels)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the bytes of distinct configurations by number: (configurations, 1) float64."""
        return in_chunks(self._moved, rows, _USES // max(1, len(self._uses)))

    def _moved(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        table, (read, users, slots), used = self._table, self._read.T, self._free[:, 0]
        configured = np.ascontiguousarray(table.of_code[:, np.asarray(self._codes[rows]).T])
        assigned = np.repeat(self._default[:, None], len(rows), axis=1)
        results = table.fitting(self._outputs, configured[0, self._columns[self._outputs]])
        assigned[self._outputs] = np.where(results, results, assigned[self._outputs])
        demands = table.fitting(read, configured[slots, self._columns[users]])
        assigned = np.where(self._inside[:, None], self._spread(self._of_groups(assigned, demands)), assigned)

        demands = np.where(demands, demands, self._computed(read, assigned[read]))
        operands, every = self._computed(read, demands), np.concatenate([read, used])
        wanted = np.concatenate([demands, table.for_operands(self._free[:, 1], assigned[self._free[:, 1]])])
        assigned[self._outputs] = self._computed(self._outputs, assigned[self._outputs])
        assigned[self._returned] = self._default[self._returned, None]
        fits = (self._columns[every] >= 0)[:, None] & (self._computed(every, wanted) == wanted)
        use, at = (numbers[::-1] for numbers in np.nonzero(fits))
        assigned[every[use], at] = wanted[use, at]  # of the first use, which is the last to be written
        before = np.where(fits, wanted, assigned[every])
        moved = [
            self._padded(self._outputs, assigned[self._outputs]),
            self._padded(read, operands),
            self._padded(self._passed, assigned[self._passed]),
            self._copied(read, demands, operands),
            self._copied(every, before, wanted),
            self._copied(self._last, assigned[self._last], self._default[self._last, None]),
        ]
        return np.asarray(sum(part.sum(axis=0) for part in moved))[:, None]

    def _of_groups(self, assigned: Numbers, demands: Numbers) -> Numbers:
        """Return the layouts of the first tensors of groups, given those of outputs and those demanded of operands."""
        first, numbers = np.repeat(self._first[:, None], assigned.shape[1], axis=1), demands[self._asking]
        sources, tensors = self._results[:, 0], self._operands[:, 0]
        changed = assigned[sources] != self._default[sources, None]
        asked = (numbers != 0) & (numbers != self._default[tensors, None])
        seen = np.concatenate([self._seen(self._results, assigned), self._mapped(tensors, numbers)])
        active, places = np.concatenate([changed, asked])[self._seeds], np.arange(len(self._seeds))[:, None]
        if len(places):
            last = np.maximum.reduceat(np.where(active, places, -1), self._starts, axis=0)
            chosen = np.take_along_axis(seen[self._seeds], last, axis=0)
            first[self._seeded] = np.where(last < 0, first[self._seeded], chosen)
        return first

    def _computed(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts in which a kernel has tensors: these, or the compiler's own where the order is another."""
        own, shapes = self._default[tensors, None], self._shape_of[tensors][:, None]
        order, wanted = self._order[shapes, numbers], self._order[shapes, own]
        return np.where((order == wanted) | (self._turned[order] == wanted), numbers, own)

    def _padded(self, tensors: Int64, numbers: Numbers) -> NDArray[np.float64]:
        return np.asarray(self._bytes[self._shape_of[tensors][:, None], numbers])

    def _copied(self, tensors: Int64, before: Numbers, after: Numbers) -> NDArray[np.float64]:
        """Return the bytes of copies, one of each tensor at most, though it has many rows."""
        shapes = self._shape_of[tensors][:, None]
        moved = (self._order[shapes, before] != self._order[shapes, after]) & (before != 0) & (after != 0)
        moved &= self._copyable[tensors, None]
        both = np.where(moved, self._padded(tensors, before) + self._padded(tensors, after), 0)
        order = np.argsort(tensors, kind="stable")
        starts = np.flatnonzero(np.diff(tensors[order], prepend=-1))
        return np.maximum.reduceat(both[order], starts, axis=0) if len(starts) else both

    def _maps_to_group(self, links: Int64) -> list[Int64]:
        """Return maps from the layouts of a group's first tensor to those of others, and set the map of each tensor."""
        known = np.zeros(len(self._group), dtype=bool)
        known[np.unique(self._group, return_index=True)[1]] = True
        maps = [np.arange(len(self._table.layouts))]
        numbers = {maps[0].tobytes(): 0}
        while len(links := links[~known[links[:, :2]].all(axis=1)]):
            for operand, user in links[known[links[:, :2]].any(axis=1)][:, :2].tolist():
                source, target = (operand, user) if known[operand] else (user, operand)
                rename = self._table.from_operands if known[operand] else self._table.for_operands
                if not known[target]:
                    renamed = rename(np.array([user]), maps[self._frame[source]][None])[0].astype(np.int64)
                    self._frame[target] = numbers.setdefault(renamed.tobytes(), len(maps))
                    if self._frame[target] == len(maps):
                        maps.append(renamed)
                    known[target] = True
        return maps

    def _seen(self, uses: Int64, assigned: Numbers) -> Numbers:
        """Return the layouts that groups need so that their users of outputs take these as they are."""
        return self._mapped(uses[:, 1], self._table.from_operands(uses[:, 1], assigned[uses[:, 0]]))

    def _mapped(self, tensors: Int64, numbers: Numbers) -> Numbers:
        """Return the layouts of the first tensors of groups, given those of others."""
        return self._inverse[self._frame[tensors][:, None], numbers]

    def _spread(self, first: Numbers) -> Numbers:
        """Return the layouts of all tensors, given those of the first tensors of groups."""
        return self._maps[self._frame[:, None], first[self._group]]
