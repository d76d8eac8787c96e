"""Columns of tile configurations relative to the kernel that they cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Float32, Graph
from hlorank.featurize.index_maps import Accesses, Axis

Float64 = NDArray[np.float64]

_KERNEL, _OUTPUT = slice(0, LAYOUT_DIMS), slice(8, 8 + LAYOUT_DIMS)
_CONTRACTIONS = ("dot", "convolution", "reduce", "reduce-window")
_CALLS = ("fusion", "call")
_PRODUCTS = ("dot", "convolution")
_LINE_BYTES = 64  # of caches of CPUs and of memory transactions of GPUs, about
_VECTOR = 16  # elements of a vector register of 64 bytes
_SUBLANES, _LANES = 8, 128  # of a vector register of TPUs; arrays are stored in blocks of this size


class _Array(NamedTuple):
    """The part of an array that a tile touches."""

    sizes: Float64  # elements (configurations, dimensions)
    # for each dimension the loops that move along it, and by how many elements for each of their steps; loops are the
    # dimensions of the result, then the reduced ones
    steps: Sequence[Mapping[int, int]]
    dims: Sequence[int]
    minor_to_major: Sequence[int]
    element_bytes: int
    block: NDArray[np.int64]  # elements (dimensions,) that are stored together, 1 but for TPUs

    @property
    def bytes(self) -> Float64:
        """Bytes of the blocks that have the part: (configurations,)."""
        return np.asarray(np.ceil(self.sizes / self.block).prod(axis=1)) * self._block_bytes

    @property
    def all_bytes(self) -> float:
        """Bytes of the whole array."""
        return float(np.ceil(np.array(self.dims) / self.block).prod()) * self._block_bytes

    @property
    def run(self) -> Float64:
        """Bytes that are contiguous in memory: (configurations,)."""
        blocks = np.ceil(self.sizes / self.block)
        length, whole = np.full(len(blocks), self._block_bytes), np.ones(len(blocks), dtype=np.bool_)
        for dim in self.minor_to_major:
            length = np.where(whole, length * blocks[:, dim], length)
            whole &= self.sizes[:, dim] >= self.dims[dim]
        return length

    @property
    def _block_bytes(self) -> float:
        return float(self.element_bytes * self.block.prod())

    def order(self, loop: int) -> int:
        """Return 1 if a loop runs over contiguous elements, -1 if over others, 0 if it does not move."""
        if not any(loop in steps for steps in self.steps):
            return 0
        minor = next((dim for dim in self.minor_to_major if self.dims[dim] > 1), None)
        return 1 if minor is not None and abs(self.steps[minor].get(loop, 0)) == 1 else -1


class TiledKernel:
    """A kernel and the tiles of its configurations.

    The root is the last node, or the root of the computation that it calls. A tile covers `output` elements of its
    result along each dimension, and `reduced` elements along the dimensions that the last dot, convolution or reduction
    before the root reduces. Bounds that are 0 cover the whole dimension.

    Bounds of TPUs count registers of 8 x 128 elements, major dimension first. They bound the result and the second
    operand of the last dot or convolution; without either, the operand that a reduction at the root reduces, or the
    root. This is inferred from the raw record of TpuGraphs, where the largest bounds have these shapes.

    Sizes and extents have the minor dimension first, reduced dimensions are in reverse order, and `all_sizes` and
    `all_extents` have both; `inputs` are the arrays without operands that are read.
    """

    def __init__(self, graph: Graph, feat: Float32, on_tpu: bool = False) -> None:
        self._accesses = accesses = Accesses(graph)
        self._on_tpu, self.vector = on_tpu, _LANES if on_tpu else _VECTOR
        root = _root(accesses, graph)
        if on_tpu:
            contraction, reduced_extents = _contraction(accesses, root, _PRODUCTS)
            dims = int(feat[:, _OUTPUT].any(axis=0).sum())
            root = _node_of_rank(accesses, root, dims) if contraction is None else contraction
            sizes, reduced = self._registers(feat, root, reduced_extents)
        else:
            contraction, reduced_extents = _contraction(accesses, root, _CONTRACTIONS)
            sizes = _bounds(feat[:, _OUTPUT], accesses.dims[root])
            reduced = _bounds(feat[:, _KERNEL], reduced_extents)
        order = list(accesses.minor_to_major[root])
        self.output, self.extents = sizes[:, order], np.array(accesses.dims[root], dtype=np.float64)[order]
        self.reduced, self.reduced_extents = reduced[:, ::-1], np.array(reduced_extents, dtype=np.float64)[::-1]
        self.all_sizes = np.hstack([self.output, self.reduced])
        self.all_extents = np.concatenate([self.extents, self.reduced_extents])
        self.cuts = np.ceil(self.all_extents / self.all_sizes)
        self.result = self._array(root, sizes, [{dim: 1} for dim in range(len(order))])
        self.inputs = self._inputs(root, contraction, reduced)
        self._loops = [*order, *(len(order) + number for number in reversed(range(len(reduced_extents))))]
        self._fused = contraction is None

    def _array(self, node: int, sizes: Float64, steps: Sequence[Mapping[int, int]]) -> _Array:
        dims, order = self._accesses.dims[node], self._accesses.minor_to_major[node]
        width = max(1, int(self._accesses.element_bytes[node]))
        inside = np.minimum(sizes, np.array(dims, dtype=np.float64))
        return _Array(inside, steps, dims, order, width, self._block(node))

    def _block(self, node: int) -> NDArray[np.int64]:
        order = self._accesses.minor_to_major[node]
        block = np.ones(len(order), dtype=np.int64)
        if self._on_tpu and len(order) == 1:
            block[:] = _SUBLANES * _LANES
        elif self._on_tpu:
            block[order[:2]] = [_LANES, _SUBLANES][: len(order)]
        return block

    def _registers(self, feat: Float32, node: int, reduced_extents: Sequence[int]) -> tuple[Float64, Float64]:
        """Return the sizes of tiles of TPUs, in elements, along the dimensions of a node and along the reduced ones."""

        def elements(bounds: Float32, node: int) -> Float64:
            dims, order = self._accesses.dims[node], self._accesses.minor_to_major[node]
            in_order = np.zeros((len(bounds), len(dims)), dtype=np.float32)
            in_order[:, order[::-1]] = bounds[:, : len(dims)]
            return _bounds(in_order * self._block(node), dims)

        reduced = _bounds(np.zeros((len(feat), len(reduced_extents)), dtype=np.float32), reduced_extents)
        access = self._accesses.access(node)
        if len(reduced_extents) and len(access.operands) == 2:
            kernel, axes = access.operands[1]
            sizes = elements(feat[:, _KERNEL], kernel)
            for dim, axis in enumerate(axes or ()):
                if axis.reduced is not None:
                    reduced[:, axis.reduced] = sizes[:, dim]
        return elements(feat[:, _OUTPUT], node), reduced

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
    def innermost(self) -> int | None:
        """The loop of several steps that runs over contiguous elements in the most arrays; None without such a loop."""
        arrays = [*self.inputs, self.result, self.result] if self._fused else self.inputs
        moving = [place for place, extent in enumerate(self.all_extents) if extent > 1]
        return max(moving, key=lambda place: sum(array.order(self._loops[place]) for array in arrays), default=None)


def _root(accesses: Accesses, graph: Graph) -> int:
    root = graph.nodes - 1
    while accesses.names[root] in _CALLS:
        called = [operand for operand in accesses.operands[root] if graph.node_feat[operand, 0]]
        if not called:
            break
        root = called[0]
    return root


def _contraction(accesses: Accesses, root: int, names: Sequence[str]) -> tuple[int | None, tuple[int, ...]]:
    """Return the last contraction up to the root with an opcode of `names`, and the sizes of its reduced dimensions."""
    for node in range(root, -1, -1):
        if accesses.names[node] in names and (sizes := accesses.access(node).reduced):
            return node, sizes[:LAYOUT_DIMS]
    return None, ()


def _node_of_rank(accesses: Accesses, root: int, rank: int) -> int:
    """Return the root if it has `rank` dimensions, else its largest operand of this rank, else the root."""
    sizes = {node: np.prod(accesses.dims[node], dtype=np.float64) for node in accesses.operands[root]}
    nodes = [root, *sorted(accesses.operands[root], key=sizes.__getitem__, reverse=True)]
    return next((node for node in nodes if rank and len(accesses.dims[node]) == rank), root)


def _bounds(bounds: Float32, extents: Sequence[int]) -> Float64:
    sizes = bounds[:, : len(extents)].astype(np.float64)
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
    """Return sizes and steps in an operand of another shape: the same number of elements, from the minor dimension."""
    dims, order = accesses.dims[operand], accesses.minor_to_major[operand]
    left, sizes = array.sizes.prod(axis=1), np.ones((len(array.sizes), len(dims)))
    steps: list[Mapping[int, int]] = [{} for _ in dims]
    for dim in order:
        sizes[:, dim] = np.minimum(np.ceil(left), dims[dim])
        left = np.maximum(left / sizes[:, dim], 1)
    for dim, same in zip(order, array.minor_to_major, strict=False):
        if dims[dim] != array.dims[same]:
            break
        steps[dim] = array.steps[same]
    return sizes, steps


def _shares(kernel: TiledKernel) -> list[Float64]:
    shares = np.ones((3, LAYOUT_DIMS, len(kernel.all_sizes)))
    parts = (kernel.output, kernel.output / kernel.extents, kernel.reduced / kernel.reduced_extents)
    for filled, columns in zip(shares, parts, strict=True):
        kept = columns.T[:LAYOUT_DIMS]
        filled[: len(kept)] = kept
    return [*shares.reshape(-1, len(kernel.all_sizes))]


def _remainders(kernel: TiledKernel) -> list[Float64]:
    padding = np.log2(kernel.cuts * kernel.all_sizes / kernel.all_extents)
    rank, place = len(kernel.extents), kernel.innermost
    inner = np.zeros(len(padding)) if place is None else padding[:, place]
    return [padding[:, :rank].sum(axis=1), padding[:, rank:].sum(axis=1), inner]


def _runs(kernel: TiledKernel) -> list[Float64]:
    written = kernel.result.run
    runs = [part.run for part in kernel.inputs]
    if not runs:
        return [written, np.ones_like(written), np.ones_like(written), np.zeros_like(written)]
    sizes = [part.bytes for part in kernel.inputs]
    pieces = [size / run for size, run in zip(sizes, runs, strict=True)]
    lines = sum(piece * np.ceil(run / _LINE_BYTES) for piece, run in zip(pieces, runs, strict=True))
    least = sum(part.all_bytes for part in kernel.inputs)
    moved = kernel.cuts.prod(axis=1) * lines * _LINE_BYTES
    return [written, sum(sizes) / sum(pieces), np.min(runs, axis=0), np.log2(moved / least)]


def _loops(kernel: TiledKernel) -> list[Float64]:
    place, sizes, extents = kernel.innermost, kernel.all_sizes, kernel.all_extents
    if place is None:
        return [np.ones(len(sizes)) for _ in range(6)]
    length = sizes[:, place]
    starts = kernel.cuts.prod(axis=1) * sizes.prod(axis=1) / length
    return [
        length,
        length / extents[place],
        length / (np.ceil(length / kernel.vector) * kernel.vector),
        np.full(len(sizes), float(place >= len(kernel.extents))),
        starts,
        np.log2(starts / extents.prod()),
    ]


_Columns = tuple[tuple[str, ...], Callable[[TiledKernel], Sequence[Float64]]]

_SHARES = ("tile[{}]", "tile[{}] / dims", "reduced[{}] / dims")
GROUPS: Mapping[str, _Columns] = {
    "tile_shares": (tuple(name.format(i) for name in _SHARES for i in range(LAYOUT_DIMS)), _shares),
    "tile_remainders": (("padding", "reduced padding", "innermost padding"), _remainders),
    "tile_runs": (("written run", "mean run", "shortest run", "log lines"), _runs),
    "tile_loops": (
        ("innermost", "innermost / dims", "vector fill", "innermost reduced", "starts", "log starts"),
        _loops,
    ),
}
"""Names and function of the columns of each group of `featurize.derived`; columns that a kernel lacks are 1."""


def tile_names(derived: Sequence[str]) -> list[str]:
    """Return the names of the columns of `tile_columns`, in order."""
    return [name for key, (names, _) in GROUPS.items() if key in derived for name in names]


def tile_columns(graph: Graph, feat: Float32, derived: Sequence[str], on_tpu: bool = False) -> Float32:
    """Return the official columns of tiles, (configurations, 24), with the derived ones, `tile_names`, after them.

    `derived` is the setting `featurize.derived`; `on_tpu` is true if the bounds count registers of TPUs.
    """
    functions = [function for key, (_, function) in GROUPS.items() if key in derived]
    if not functions:
        return feat
    kernel = TiledKernel(graph, feat, on_tpu)
    columns = [column for function in functions for column in function(kernel)]
    return np.column_stack([feat, *columns]).astype(np.float32)
