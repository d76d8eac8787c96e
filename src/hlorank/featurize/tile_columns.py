"""Columns of tile configurations relative to the kernel that they cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS, Float32, Graph
from hlorank.featurize.accesses import Accesses, Axis

Float64 = NDArray[np.float64]

_KERNEL_BOUNDS, _OUTPUT_BOUNDS = 0, 8
_CONTRACTIONS = ("dot", "convolution", "reduce", "reduce-window")
_CALLS = ("fusion", "call")
_LINE_BYTES = 64  # of caches of CPUs and of memory transactions of GPUs, about
_VECTOR = 16  # elements of a vector register of 64 bytes


class _Array(NamedTuple):
    """The part of an array that a tile touches.

    Attributes:
        sizes: (configurations, dimensions) float64, elements along each dimension.
        steps: for each dimension, the loops that move along it, and by how many elements for each of their steps.
            Loops are the dimensions of the result, then the reduced ones.
        dims: the dimensions of the array.
        minor_to_major: its layout.
        element_bytes: size of an element, at least 1.
    """

    sizes: Float64
    steps: Sequence[Mapping[int, int]]
    dims: Sequence[int]
    minor_to_major: Sequence[int]
    element_bytes: int

    @property
    def elements(self) -> Float64:
        """Elements of the part: (configurations,)."""
        return np.asarray(self.sizes.prod(axis=1))

    @property
    def run(self) -> Float64:
        """Elements that are contiguous in memory: (configurations,)."""
        length, whole = np.ones(len(self.sizes)), np.ones(len(self.sizes), dtype=np.bool_)
        for dim in self.minor_to_major:
            length = np.where(whole, length * self.sizes[:, dim], length)
            whole &= self.sizes[:, dim] >= self.dims[dim]
        return length

    def order(self, loop: int) -> int:
        """Return 1 if a loop runs over contiguous elements, -1 if over others, 0 if it does not move."""
        if not any(loop in steps for steps in self.steps):
            return 0
        minor = next((dim for dim in self.minor_to_major if self.dims[dim] > 1), None)
        return 1 if minor is not None and abs(self.steps[minor].get(loop, 0)) == 1 else -1


class TiledKernel:
    """A kernel and the tiles of its configurations.

    The root is the last node, or the root of the computation that it calls. A tile covers `output` elements of its
    result along each dimension, and `reduced` ones along those that the last dot, convolution or reduction before it
    reduces. Bounds that are 0 cover the whole dimension.

    Args:
        graph: the kernel.
        feat: (configurations, 24) float32, the official columns of tiles.

    Attributes:
        output: (configurations, dimensions) float64, minor dimension first.
        extents: (dimensions,) float64, those of the result, minor first.
        reduced: (configurations, reduced dimensions) float64, in reverse order.
        reduced_extents: (reduced dimensions,) float64.
        result: the result of the kernel.
        inputs: the arrays without operands that are read.
    """

    def __init__(self, graph: Graph, feat: Float32) -> None:
        self._accesses = accesses = Accesses(graph)
        root = _root(accesses, graph)
        contraction, reduced_extents = _contraction(accesses, root)
        dims = accesses.dims[root]
        sizes, reduced = (
            _bounds(feat, start, extents)
            for start, extents in ((_OUTPUT_BOUNDS, dims), (_KERNEL_BOUNDS, reduced_extents))
        )
        order = list(accesses.minor_to_major[root])
        self.output, self.extents = sizes[:, order], np.array(dims, dtype=np.float64)[order]
        self.reduced, self.reduced_extents = reduced[:, ::-1], np.array(reduced_extents, dtype=np.float64)[::-1]
        self.result = self._array(root, sizes, [{dim: 1} for dim in range(len(dims))])
        self.inputs = self._inputs(root, contraction, reduced)
        self._loops = [*order, *(len(dims) + number for number in reversed(range(len(reduced_extents))))]
        self._fused = contraction is None

    def _array(self, node: int, sizes: Float64, steps: Sequence[Mapping[int, int]]) -> _Array:
        dims = self._accesses.dims[node]
        width = max(1, int(self._accesses.element_bytes[node]))
        inside = np.minimum(sizes, np.array(dims, dtype=np.float64))
        return _Array(inside, steps, dims, self._accesses.minor_to_major[node], width)

    def _inputs(self, root: int, contraction: int | None, reduced: Float64) -> list[_Array]:
        """Follow what a tile reads from the root to the nodes without operands."""
        accesses, inputs = self._accesses, list[_Array]()
        arrays = {root: self.result}
        for node in range(root, -1, -1):
            array = arrays.get(node)
            if array is None:
                continue
            access = accesses.access(node)
            if not access.operands and array.dims:
                inputs.append(array)
            tiled = reduced if node == contraction else np.array([access.reduced], dtype=np.float64)
            first = len(self.result.dims) if node == contraction else None
            for operand, axes in access.operands:
                if axes is None:
                    part = self._array(operand, *_filled(array, accesses, operand))
                else:
                    part = self._array(operand, *_followed(array, axes, tiled, first))
                if operand in arrays:
                    part = arrays[operand]._replace(sizes=np.maximum(arrays[operand].sizes, part.sizes))
                arrays[operand] = part
        return inputs

    @property
    def all_sizes(self) -> Float64:
        """Sizes of the tile along the loops, (configurations, loops), minor dimensions first, then reduced ones."""
        return np.hstack([self.output, self.reduced])

    @property
    def all_extents(self) -> Float64:
        """Extents of the loops: (loops,)."""
        return np.concatenate([self.extents, self.reduced_extents])

    @property
    def innermost(self) -> int | None:
        """The loop that runs over contiguous elements in most arrays, among those of more than one step; else None."""
        arrays = [*self.inputs, self.result, self.result] if self._fused else self.inputs
        order = {
            place: sum(array.order(loop) for array in arrays)
            for place, loop in enumerate(self._loops)
            if self.all_extents[place] > 1
        }
        return max(order, key=order.__getitem__, default=None)


def _root(accesses: Accesses, graph: Graph) -> int:
    root = graph.nodes - 1
    while accesses.names[root] in _CALLS:
        called = [operand for operand in accesses.operands[root] if graph.node_feat[operand, 0]]
        if not called:
            break
        root = called[0]
    return root


def _contraction(accesses: Accesses, root: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the last contraction up to the root, and the sizes of its reduced dimensions."""
    for node in range(root, -1, -1):
        if accesses.names[node] in _CONTRACTIONS and (sizes := accesses.access(node).reduced):
            return node, sizes[:LAYOUT_DIMS]
    return None, ()


def _bounds(feat: Float32, start: int, extents: Sequence[int]) -> Float64:
    sizes = feat[:, start : start + len(extents)].astype(np.float64)
    whole = np.array(extents, dtype=np.float64)
    return np.where(sizes > 0, np.minimum(sizes, whole), whole)


def _followed(
    array: _Array, axes: Sequence[Axis], reduced: Float64, first: int | None
) -> tuple[Float64, list[Mapping[int, int]]]:
    """Return sizes and steps in an operand; `first` is the loop of the first reduced dimension, None if not tiled."""
    sizes, steps = np.ones((len(array.sizes), len(axes))), list[Mapping[int, int]]()
    for dim, axis in enumerate(axes):
        moved = dict[int, int]()
        reach = np.zeros(len(sizes))
        if axis.result is not None:
            reach += (array.sizes[:, axis.result] - 1) * axis.stride
            moved = {loop: step * axis.stride for loop, step in array.steps[axis.result].items()}
        if axis.reduced is not None:
            reach += (reduced[:, axis.reduced] - 1) * axis.dilation
            if first is not None:
                moved[first + axis.reduced] = axis.dilation
        sizes[:, dim] = np.ceil((reach + 1) / axis.base)
        steps.append(moved if axis.base == 1 else dict.fromkeys(moved, 0))
    return sizes, steps


def _filled(array: _Array, accesses: Accesses, operand: int) -> tuple[Float64, list[Mapping[int, int]]]:
    """Return sizes and steps in an operand of another shape: as many elements, from the minor dimension on."""
    dims, order = accesses.dims[operand], accesses.minor_to_major[operand]
    left, sizes = array.elements, np.ones((len(array.sizes), len(dims)))
    steps: list[Mapping[int, int]] = [{} for _ in dims]
    for dim in order:
        sizes[:, dim] = np.minimum(np.ceil(left), dims[dim])
        left = np.maximum(left / sizes[:, dim], 1)
    for dim, same in zip(order, array.minor_to_major, strict=False):
        if dims[dim] != array.dims[same]:
            break
        steps[dim] = array.steps[same]
    return sizes, steps


def _padded(columns: Float64, count: int) -> list[Float64]:
    """Return `count` columns, 1 beyond those that there are."""
    filled = np.ones((len(columns), count))
    kept = min(count, columns.shape[1])
    filled[:, :kept] = columns[:, :kept]
    return list(filled.T)


def _shares(kernel: TiledKernel) -> list[Float64]:
    return [
        *_padded(kernel.output, LAYOUT_DIMS),
        *_padded(kernel.output / kernel.extents, LAYOUT_DIMS),
        *_padded(kernel.reduced / kernel.reduced_extents, LAYOUT_DIMS),
    ]


def _cuts(kernel: TiledKernel) -> Float64:
    return np.asarray(np.ceil(kernel.all_extents / kernel.all_sizes))


def _remainders(kernel: TiledKernel) -> list[Float64]:
    padding = np.log2(_cuts(kernel) * kernel.all_sizes / kernel.all_extents)
    rank, place = len(kernel.extents), kernel.innermost
    inner = np.zeros(len(padding)) if place is None else padding[:, place]
    return [padding[:, :rank].sum(axis=1), padding[:, rank:].sum(axis=1), inner]


def _runs(kernel: TiledKernel) -> list[Float64]:
    written = kernel.result.run * kernel.result.element_bytes
    runs = [part.run * part.element_bytes for part in kernel.inputs]
    if not runs:
        return [written, np.ones_like(written), np.ones_like(written), np.zeros_like(written)]
    sizes = [part.elements * part.element_bytes for part in kernel.inputs]
    pieces = [size / run for size, run in zip(sizes, runs, strict=True)]
    lines = sum(piece * np.ceil(run / _LINE_BYTES) for piece, run in zip(pieces, runs, strict=True))
    least = sum(np.prod(part.dims) * part.element_bytes for part in kernel.inputs)
    moved = _cuts(kernel).prod(axis=1) * lines * _LINE_BYTES
    return [written, sum(sizes) / sum(pieces), np.min(runs, axis=0), np.log2(moved / least)]


def _loops(kernel: TiledKernel) -> list[Float64]:
    place, sizes, extents = kernel.innermost, kernel.all_sizes, kernel.all_extents
    if place is None:
        return [np.ones(len(sizes)) for _ in range(6)]
    length = sizes[:, place]
    starts = _cuts(kernel).prod(axis=1) * sizes.prod(axis=1) / length
    return [
        length,
        length / extents[place],
        length / (np.ceil(length / _VECTOR) * _VECTOR),
        np.full(len(sizes), float(place >= len(kernel.extents))),
        starts,
        np.log2(starts / extents.prod()),
    ]


class _Group(NamedTuple):
    """Columns that are chosen together: their names, and the function that computes them."""

    names: tuple[str, ...]
    compute: Callable[[TiledKernel], Sequence[Float64]]


_NUMBERS = range(LAYOUT_DIMS)
GROUPS: Mapping[str, _Group] = MappingProxyType(
    {
        "tile_shares": _Group(
            (
                *(f"tile[{i}]" for i in _NUMBERS),
                *(f"tile[{i}] / dims" for i in _NUMBERS),
                *(f"reduced[{i}] / dims" for i in _NUMBERS),
            ),
            _shares,
        ),
        "tile_remainders": _Group(("padding", "reduced padding", "innermost padding"), _remainders),
        "tile_runs": _Group(("written run", "mean run", "shortest run", "log lines"), _runs),
        "tile_loops": _Group(
            ("innermost", "innermost / dims", "vector fill", "innermost reduced", "starts", "log starts"), _loops
        ),
    }
)
"""Groups of columns by the name in `featurize.derived`; columns that do not exist in a kernel are 1."""


def tile_names(derived: Sequence[str]) -> list[str]:
    """Return the names of the columns of `tile_columns`, in order."""
    return [name for key, group in GROUPS.items() if key in derived for name in group.names]


def tile_columns(graph: Graph, feat: Float32, derived: Sequence[str]) -> Float32:
    """Compute the columns of tile configurations: the official ones, then those derived from the kernel.

    Args:
        graph: the kernel.
        feat: (configurations, 24) float32, the official columns.
        derived: the setting `featurize.derived`.

    Returns:
        (configurations, 24 + derived) float32; the derived ones are those of `tile_names`.
    """
    groups = [group for key, group in GROUPS.items() if key in derived]
    if not groups:
        return feat
    kernel = TiledKernel(graph, feat)
    columns = [column for group in groups for column in group.compute(kernel)]
    return np.column_stack([feat, *columns]).astype(np.float32)
