"""Features of one graph, the inputs of a model; and distinct rows, columns and distances of large arrays."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import Int64
from hlorank.metrics import group_medians

_BLOCK_BYTES = 16 * 2**20
AnyNumber = TypeVar("AnyNumber", bound=np.generic)


@dataclass(frozen=True, eq=False)
class LayoutFeatures:
    """Distinct layout configurations of one graph."""

    node_ids: NDArray[np.int64]  # (configurable nodes,) increasing
    # (U, 18) rows of layout values, in lexicographic order; with sizes and costs, the rows are distinct
    codebook: NDArray[np.int8]
    # (U, 18) the dimensions in the order of the layouts, 0 where a layout has no value or the tensor is unknown
    sizes: NDArray[np.float32]
    # (U, 3) what the layouts cost, see `copy_moves` and `tile_padding`; 0 without `featurize.derived: [layout_costs]`
    costs: NDArray[np.float32]
    tensors: NDArray[np.int32]  # (T, 22) the tensors whose layouts depend on a configuration, see `copy_tensors`
    uses: NDArray[np.int32]  # (uses, 3) the uses of these tensors
    codes: NDArray[np.unsignedinteger[Any]]  # (distinct configurations, configurable nodes) rows of the codebook


@dataclass(frozen=True, eq=False)
class TileFeatures:
    """Distinct tile configurations of one kernel, (distinct configurations, tile columns kept), scaled."""

    feat: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """Features of one pruned graph; the arrays may be memory-mapped."""

    name: str
    node_feat: NDArray[np.float32]  # (nodes, columns kept) scaled
    opcode: NDArray[np.uint8]  # (nodes,) index into the opcode vocabulary, 0 = unknown
    node_layout: NDArray[np.int8]  # (nodes, 6) minor_to_major padded with -1
    edge_index: NDArray[np.int64]  # (edges, 2) row [u, v]: u consumes the output of v
    node_splits: NDArray[np.int64]  # (computations + 1,) boundaries of blocks of nodes, first 0, last `nodes`
    configurations: LayoutFeatures | TileFeatures
    row_of: NDArray[np.int64]  # (configurations,) the distinct configuration of each original row
    runtime: NDArray[np.int64]  # (configurations,) nanoseconds of each original row, all 0 if withheld
    normalizer: NDArray[np.int64] | None  # (configurations,) for tiles, None for layouts
    # Kendall tau between two halves of the measurements, None where nothing was measured twice
    split_half_tau: float | None = None
    family: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.opcode)

    @property
    def distinct(self) -> int:
        """Number of distinct configurations."""
        configurations = self.configurations
        return len(configurations.codes if isinstance(configurations, LayoutFeatures) else configurations.feat)

    @property
    def withheld(self) -> bool:
        """True if the labels are withheld."""
        return not self.runtime.any()

    @property
    def label(self) -> NDArray[np.float64]:
        """Label of each original row: (configurations,) float64, ns for layouts, runtime / normalizer for tiles."""
        runtime = self.runtime.astype(np.float64)
        return runtime if self.normalizer is None else runtime / self.normalizer

    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the distinct configurations that training ranks, (targets,) int64, and their labels.

        For layouts, each distinct configuration occurs once, with the median of its repeated measurements. For tiles,
        every original row occurs, as rows with equal features are different tiles that share one score.
        """
        if isinstance(self.configurations, TileFeatures):
            return np.asarray(self.row_of), self.label
        return np.arange(self.distinct), group_medians(self.row_of, self.label)


def distinct_rows(rows: NDArray[Any]) -> tuple[Int64, Int64]:
    """Return the first row of each distinct row of an array, (distinct,), and the distinct row of each row, (rows,).

    The result is exact, as the bytes of whole rows are compared, in linear time; 0.0 and -0.0 are equal.
    """
    if np.issubdtype(rows.dtype, np.floating):
        rows = rows + rows.dtype.type(0)  # -0.0 becomes 0.0, which has other bytes
    seen: dict[bytes, int] = {}
    numbers = (seen.setdefault(row.tobytes(), len(seen)) for row in rows)
    inverse = np.fromiter(numbers, dtype=np.int64, count=len(rows))
    first = np.flatnonzero(np.diff(np.maximum.accumulate(inverse), prepend=-1))
    return first, inverse


def column_blocks(array: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield ranges of columns of an array stored by rows, with these columns as contiguous rows, in bounded memory."""
    step = max(1, _BLOCK_BYTES // max(1, array.itemsize * len(array)))
    for start in range(0, array.shape[1], step):
        part = slice(start, start + step)
        yield part, np.ascontiguousarray(array[:, part].T)


def in_chunks(function: Callable[[Int64], NDArray[AnyNumber]], rows: Int64, most: int) -> NDArray[AnyNumber]:
    """Concatenate the results of a function of numbers of rows, called for at most `most` rows, but at least one."""
    step = max(1, most)
    return np.concatenate([function(rows[start : start + step]) for start in range(0, max(1, len(rows)), step)])


def distances(edge_index: Int64, nodes: int, sources: Int64) -> Int64:
    """Count the edges, (edges, 2) used in either direction, from each node to its nearest source; -1 without a path."""
    from scipy import sparse
    from scipy.sparse.csgraph import dijkstra

    adjacency = sparse.csr_array((np.ones(len(edge_index)), tuple(edge_index.T)), shape=(nodes, nodes))
    distance = dijkstra(adjacency, directed=False, indices=sources, unweighted=True, min_only=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)
