"""Features of configurations for models without message passing: pooled over nodes, and the bytes that are copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.data.configurations import LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.data.graph import Int64
from hlorank.featurize import relayout
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, column_blocks, in_chunks
from hlorank.models.baselines.layout_table import LayoutTable, Numbers
from hlorank.models.baselines.padded_bytes import PaddedBytes
from hlorank.models.graph_inputs import InputSizes

_CHUNK_BYTES = 16 * 2**20
_VALUES = np.arange(LAYOUT_MIN, LAYOUT_MAX + 1)
_CODE_BYTES = 32  # temporary arrays for each configurable node of a configuration
_MAX_REFERENCES = 1000  # configurations that others are compared with


def pooled_columns(sizes: InputSizes) -> int:
    """Return the number of columns of `PooledGraph.rows` for graphs of these sizes."""
    if sizes.kind == "tile":
        return sizes.tile_columns + _of_nodes(sizes)
    return changed_column(sizes) + _of_nodes(sizes) + relayout.COSTS


def changed_column(sizes: InputSizes) -> int:
    """Return the column of `PooledGraph.rows` with the rank by changed configurable nodes, for layout graphs."""
    return _of_nodes(sizes) + LAYOUT_VALUES * len(_VALUES)


def cost_columns(sizes: InputSizes) -> int:
    """Return the number of columns of `PooledGraph.costs`: those of `PaddedBytes` on a TPU, else of `CopiedBytes`."""
    return 1 if sizes.on_tpu else COPY_COLUMNS


def _of_nodes(sizes: InputSizes) -> int:
    return 1 + sizes.opcodes + sizes.node_columns


class PooledGraph:
    """Features of a graph's distinct configurations, without message passing.

    - Of the graph: log(1 + nodes), the share of each opcode, the mean of the numeric node features.
    - Of a layout configuration: the frequency of each value at each of its 18 positions, the share of nodes that it
      changes, the same by opcode, and the sum of the numeric features of the changed nodes. A node is changed if its
      layout is not its most frequent layout among the graph's distinct configurations, which for `default` search and
      for measured data is mostly the compiler's choice. Then the sums of what copies to the layouts move. Each number
      is replaced by its rank, in [0, 1], among all configurations of the graph, or 1,000 of them: the share of the
      configurations with a smaller number, plus half of the share with an equal number.
    - Of a tile configuration: its features.
    """

    def __init__(self, graph: GraphFeatures, sizes: InputSizes) -> None:
        self._graph, self._sizes = graph, sizes

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._graph.name

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute (configurations, `pooled_columns`) float32 of distinct configurations, each independently."""
        configurations, first = self._graph.configurations, _of_nodes(self._sizes)
        result = np.empty((len(rows), pooled_columns(self._sizes)), dtype=np.float32)
        result[:, :first] = self._of_graph
        if not isinstance(configurations, LayoutFeatures):
            result[:, first:] = configurations.feat[rows]
            return result
        ordered = self._ordered
        for part, column in zip(self._layouts(rows).T, range(first, result.shape[1]), strict=True):
            below, up_to = (ordered[:, column - first].searchsorted(part, side) for side in ("left", "right"))
            result[:, column] = (below + up_to) / (2 * len(ordered))
        return result

    @cached_property
    def costs(self) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        """Function of distinct layout configurations to what the model `analytical` adds, (rows, `cost_columns`)."""
        assert isinstance(self._graph.configurations, LayoutFeatures)
        return (PaddedBytes if self._sizes.on_tpu else CopiedBytes)(self._graph.configurations)

    @cached_property
    def _of_graph(self) -> NDArray[np.float32]:
        graph = self._graph
        shares = np.bincount(graph.opcode, minlength=self._sizes.opcodes) / graph.nodes
        means = graph.node_feat.mean(axis=0, dtype=np.float64)
        return np.concatenate([[np.log1p(graph.nodes)], shares, means]).astype(np.float32)

    @cached_property
    def _layouts(self) -> _PooledLayouts:
        return _PooledLayouts(self._graph, self._sizes.opcodes)

    @cached_property
    def _ordered(self) -> NDArray[np.float32]:
        count = self._graph.distinct
        references = np.linspace(0, count - 1, min(count, _MAX_REFERENCES)).round().astype(np.int64)
        return np.sort(self._layouts(references), axis=0)


class _PooledLayouts:
    """The counts and sums of layout configurations, whose ranks are features."""

    def __init__(self, graph: GraphFeatures, opcodes: int) -> None:
        layouts = graph.configurations
        assert isinstance(layouts, LayoutFeatures)
        self._codes = layouts.codes
        one_hot = layouts.codebook[:, :, None] == _VALUES
        self._one_hot = one_hot.reshape(len(one_hot), LAYOUT_VALUES * len(_VALUES)).astype(np.float64)
        self._usual = _most_frequent(layouts)
        self._costs = np.asarray(layouts.costs, dtype=np.float64)
        nodes = layouts.node_ids
        opcode = np.eye(opcodes)[graph.opcode[nodes]]
        self._of_node = np.hstack([np.ones_like(opcode[:, :1]), opcode, graph.node_feat[nodes]], dtype=np.float64)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return in_chunks(self._pooled, rows, _CHUNK_BYTES // (_CODE_BYTES * max(1, self._codes.shape[1])))

    def _pooled(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        # Sparse: independent of the codebook's length, and each row is summed in the order of its nodes. Sums of
        # float64 that differ only in their order are equal as float32, and so have the same rank.
        codes = np.asarray(self._codes[rows])
        count, nodes = codes.shape
        place = csr_array(
            (np.ones(codes.size), codes.ravel().astype(np.int32), nodes * np.arange(count + 1)),
            shape=(count, len(self._one_hot)),
        )
        changed = csr_array((codes != self._usual).astype(np.float64))
        return np.hstack([place @ self._one_hot, changed @ self._of_node, place @ self._costs], dtype=np.float32)


def _most_frequent(layouts: LayoutFeatures) -> NDArray[np.int64]:
    """Return the most frequent code of each configurable node, the smallest of codes that tie."""
    usual = [np.bincount(column).argmax() for _, block in column_blocks(layouts.codes) for column in block]
    return np.array(usual, dtype=np.int64)


KINDS = ("for a configured user", "for another user", "inside, of operands", "inside, of results", "at the end")
COPY_COLUMNS = len(KINDS) * relayout.READS
"""Columns of `CopiedBytes`."""

_FEW_USES = 16  # of a tensor: each is compared with all others
_USES = 2**22  # uses of tensors, times configurations, that are in memory at once


class CopiedBytes:
    """Bytes that the configurations of a graph copy, by where and by how a copy reads them.

    The layouts of tensors are assigned as `hlorank.featurize.relayout` says. The output of a configurable node has its
    configured layout, or else is row-major. A tensor that takes any layout has the layout that the first of its users
    with a demand demands, or else the layout of its first operand, or else is row-major. There is a copy for each other
    layout that users of a tensor demand. A configurable node computes on row-major tensors, as XLA:CPU does, so it
    copies each operand from its configured layout, and its result to it. The program takes and returns tensors in its
    entry layouts, mostly row-major.
    Values that are no permutation of all dimensions count as no layout.

    For each of the `KINDS` there are the `READS` columns of `copied_bytes`.
    """

    def __init__(self, layouts: LayoutFeatures) -> None:
        tensors, uses = (np.asarray(array).astype(np.int64) for array in (layouts.tensors, layouts.uses))
        self._codes, self._tensors = layouts.codes, tensors
        self._uses = uses[np.lexsort((uses[:, 2] == 0, uses[:, 0]))]  # of a tensor, uses by configurable nodes first
        levels = [_levels(uses, target, len(tensors)) for target in (0, 1)]
        self._from_users = _stages(uses[tensors[uses[:, 0], relayout.FLEXIBLE] > 0], 0, levels[0])
        self._from_operands = _stages(uses[uses[:, 2] == 0], 1, levels[1])
        self._layouts = LayoutTable(layouts.codebook, tensors)
        shapes = np.column_stack([tensors[:, relayout.SHAPE], tensors[:, relayout.ITEM_BYTES]])
        self._shapes, self._shape_of = np.unique(shapes, axis=0, return_inverse=True)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the columns of distinct configurations by number: (configurations, `COPY_COLUMNS`) float64."""
        return in_chunks(self._copied, rows, _USES // max(1, len(self._uses)))

    def _copied(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        configured = np.ascontiguousarray(self._layouts.of_code[:, np.asarray(self._codes[rows]).T])
        own, columns, tensors = self._layouts.own, self._tensors[:, relayout.COLUMN], self._uses[:, 0]
        outputs, last = np.flatnonzero(columns >= 0), np.flatnonzero(self._tensors[:, relayout.LAST])
        chosen = self._layouts.fitting(outputs, configured[0, columns[outputs]])
        assigned = np.zeros((len(columns), len(rows)), dtype=np.int16)
        assigned[outputs] = np.where(chosen, chosen, own[outputs, None])
        self._propagate(configured, assigned)
        wanted = self._demands(configured, assigned, self._uses)
        first, sums = self._first_ones(wanted), self._sums
        fixed, free = np.flatnonzero(self._uses[:, 2]), np.flatnonzero(self._uses[:, 2] == 0)
        parts = [
            *(sums(tensors[uses], assigned[tensors[uses]], first[uses]) for uses in (fixed, free)),
            sums(tensors[fixed], wanted[fixed], own[tensors[fixed], None]),
            sums(outputs, own[outputs, None], chosen),
            sums(last, assigned[last], self._layouts.given[last, None]),
        ]
        return np.concatenate(parts, axis=1)

    def _propagate(self, configured: Numbers, assigned: Numbers) -> None:
        """Assign layouts to the tensors that have none; `configured` is (slots, nodes, configurations)."""
        for uses in self._from_users:
            before = assigned[uses[:, 0]]
            assigned[uses[:, 0]] = np.where(before, before, self._demands(configured, assigned, uses))
        for uses in self._from_operands:
            before, moved = assigned[uses[:, 1]], self._layouts.from_operands(uses[:, 1], assigned[uses[:, 0]])
            assigned[uses[:, 1]] = np.where(before, before, moved)
        assigned[:] = np.where(assigned, assigned, self._layouts.given[:, None])

    def _demands(self, configured: Numbers, assigned: Numbers, uses: Int64) -> Numbers:
        """Return the layouts that users demand of tensors."""
        fixed, free = np.flatnonzero(uses[:, 2]), np.flatnonzero(uses[:, 2] == 0)
        result = np.empty((len(uses), configured.shape[2]), dtype=np.int16)
        tensors, users, slots = uses[fixed].T
        demands = self._layouts.fitting(tensors, configured[slots, self._tensors[users, relayout.COLUMN]])
        own, given = self._layouts.own[tensors], self._layouts.given[tensors]
        result[fixed] = np.where((demands == 0) & (own != given)[:, None], own[:, None], demands)
        result[free] = self._layouts.for_operands(uses[free, 1], assigned[uses[free, 1]])
        return result

    def _first_ones(self, wanted: Numbers) -> Numbers:
        """Return the layout that each use demands, none where an earlier use demands the same."""
        tensors, configurations = self._uses[:, 0], wanted.shape[1]
        numbers, counts = _numbers_within(tensors), np.bincount(tensors)[tensors]
        first, many = wanted.copy(), np.flatnonzero(counts > _FEW_USES)
        for number in range(1, min(_FEW_USES, counts.max(initial=0))):
            uses = np.flatnonzero((numbers == number) & (counts <= _FEW_USES))
            others = wanted[uses - np.arange(1, number + 1)[:, None]]
            first[uses] = np.where((others == wanted[uses]).any(axis=0), 0, wanted[uses])
        keys = (tensors[many, None] * len(self._layouts.layouts) + wanted[many]) * configurations
        repeated = pd.Series((keys + np.arange(configurations)).ravel()).duplicated().to_numpy()
        first[many] = np.where(repeated.reshape(len(many), configurations), 0, wanted[many])
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
        copies = relayout.copied_bytes(layouts[old], layouts[new], self._shapes[shape, :-1], self._shapes[shape, -1])
        ends = np.searchsorted(configuration, np.arange(len(moved) + 1))
        counts = csr_array((np.ones(len(number)), number, ends), shape=(len(moved), len(copies)))
        return np.asarray(counts @ copies)


def _numbers_within(groups: Int64) -> Int64:
    """Return the number of each element within its group, of sorted groups."""
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
