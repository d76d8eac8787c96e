"""Elements of its operands that an instruction reads for an element of its result, dimension by dimension.

Edges record neither the order of two operands nor the contracted dimensions of a dot: both are inferred from shapes.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, element_bytes, node_layout, node_ranks
from hlorank.featurize.features import distinct_rows
from hlorank.hlo.node_features import COLUMNS, OPCODES

_NAMES = {number: name for name, number in OPCODES.items()}
_SPATIAL = COLUMNS["convolution_input_spatial"].width
_WINDOW = ("window_size", "window_stride", "window_dilation", "window_base_dilation")


class Axis(NamedTuple):
    """Places along one dimension of an operand that are read for one element of a result.

    They are (stride * r + dilation * k) / base up to an offset, where they are whole: r is the element's place along
    dimension `result`, 0 for None, and k runs over the reduced dimension `reduced`.
    """

    result: int | None = None
    reduced: int | None = None
    stride: int = 1
    dilation: int = 1
    base: int = 1


class Access(NamedTuple):
    """Operands and dimensions that an instruction reads."""

    # sizes of the contracted dimensions of a dot; of the window, then the input features (of a group), of a
    # convolution; of the dimensions or the window of a reduction
    reduced: tuple[int, ...]
    # node and axes of each distinct operand; None where no dimensions correspond
    operands: tuple[tuple[int, tuple[Axis, ...] | None], ...]


class Accesses:
    """The instructions of a graph with their shapes, and what each instruction reads of its operands.

    Of each node there are its dimensions in `dims`, at most six and at least 1 each; its layout in `minor_to_major`,
    row-major where no layout is known; its `operands` with the roots of the computations that it calls; its opcode in
    `names`, empty if unknown; and the `element_bytes` of its result, 0 for tuples.
    """

    def __init__(self, graph: Graph) -> None:
        feat = graph.node_feat
        self._graph, self._feat = graph, feat
        ranks = node_ranks(feat).tolist()
        sizes = np.maximum(feat[:, DIMS].astype(np.int64), 1)  # ratios to an extent of 0 are undefined
        self.dims = [row[:rank] for row, rank in zip(sizes.tolist(), ranks, strict=True)]
        layouts = [[dim for dim in row if dim >= 0] for row in node_layout(feat).tolist()]
        self.minor_to_major = [
            layout if len(layout) == rank else list(range(rank))[::-1]
            for layout, rank in zip(layouts, ranks, strict=True)
        ]
        self.operands: list[list[int]] = [[] for _ in ranks]
        for user, operand in graph.edge_index.tolist():
            self.operands[user].append(operand)
        self.names = [_NAMES.get(opcode, "") for opcode in graph.node_opcode.tolist()]
        self.element_bytes = element_bytes(feat)

    @cached_property
    def _pairs(self) -> dict[int, tuple[int, int]]:
        """The first two operands of dots and convolutions."""
        nodes = np.flatnonzero(np.isin(self._graph.node_opcode, [OPCODES["dot"], OPCODES["convolution"]]))
        pairs = operand_pairs(self._graph, nodes, np.zeros((len(nodes), 2), dtype=np.int64))
        return {node: (left, right) for node, (left, right) in zip(nodes.tolist(), pairs.tolist(), strict=True)}

    def access(self, node: int) -> Access:
        """Return what a node reads; for a `fusion` or another call, nothing is known but its operands."""
        reduced = {
            "dot": self._dot,
            "convolution": self._convolution,
            "reduce": self._reduction,
            "reduce-window": self._reduction,
        }
        if (known := reduced.get(self.names[node])) and (found := known(node)) is not None:
            return found
        return Access((), tuple((operand, self._axes(node, operand)) for operand in self.operands[node]))

    def _axes(self, node: int, operand: int) -> tuple[Axis, ...] | None:
        name, rank = self.names[node], len(self.dims[operand])
        if rank == 0:
            return ()
        if name == "broadcast":
            return tuple(Axis(dim) for dim in self._values(node, "dimensions", rank))
        if name == "transpose":
            return tuple(Axis(int(dim)) for dim in np.argsort(self._values(node, "dimensions", rank)))
        return tuple(Axis(dim) for dim in range(rank)) if rank == len(self.dims[node]) else None

    def _values(self, node: int, name: str, count: int) -> list[int]:
        columns = COLUMNS[name]
        values = self._feat[node, columns.start : columns.start + min(count, columns.width)]
        return [*map(int, values.astype(np.int64))]

    def _dot(self, node: int) -> Access | None:
        left, right = self._pairs[node]
        if left < 0 or (found := dot_axes(self.dims[node], self.dims[left], self.dims[right])) is None:
            return None
        reduced = {axis.reduced: size for axis, size in zip(found[0], self.dims[left], strict=True)}
        sizes = tuple(reduced[number] for number in range(len(reduced.keys() - {None})))
        return Access(sizes, ((left, found[0]), (right, found[1])))

    def _convolution(self, node: int) -> Access | None:
        image, kernel = self._pairs[node]
        rank = len(self.dims[node])
        spatial = rank - 2
        if image < 0 or not 0 <= spatial <= _SPATIAL:
            return None
        image_batch, image_feature = self._values(node, "convolution_input_batch_and_feature", 2)
        kernel_input, kernel_output = self._values(node, "convolution_kernel_input_and_output_feature", 2)
        batch, feature = self._values(node, "convolution_output_batch_and_feature", 2)
        # The spatial dimensions of the result have no column; all compilers seen number them upwards.
        places = [dim for dim in range(rank) if dim not in (batch, feature)]
        image_axes = {image_batch: Axis(batch), image_feature: Axis(reduced=spatial)}
        kernel_axes = {kernel_input: Axis(reduced=spatial), kernel_output: Axis(feature)}
        image_places = self._values(node, "convolution_input_spatial", spatial)
        kernel_places = self._values(node, "convolution_kernel_spatial", spatial)
        windows = list(self._windows(node, spatial))
        for number, (_, *steps) in enumerate(windows):
            image_axes[image_places[number]] = Axis(places[number], number, *steps)
            kernel_axes[kernel_places[number]] = Axis(reduced=number)
        if any(sorted(axes) != list(range(rank)) for axes in (image_axes, kernel_axes)):
            return None
        if any(len(self.dims[operand]) != rank for operand in (image, kernel)):
            return None
        reduced = (*(size for size, *_ in windows), self.dims[kernel][kernel_input])
        axes = ((image, image_axes), (kernel, kernel_axes))
        return Access(reduced, tuple((operand, tuple(of[dim] for dim in range(rank))) for operand, of in axes))

    def _windows(self, node: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Return size, stride, dilation and base dilation of each dimension of a window, 1 where they are missing."""
        columns = ([max(value, 1) for value in self._values(node, name, count)] for name in _WINDOW)
        return zip(*columns, strict=True)

    def _reduction(self, node: int) -> Access | None:
        rank, operands = len(self.dims[node]), self.operands[node]
        array = max(operands, key=lambda operand: len(self.dims[operand]), default=node)
        largest = len(self.dims[array])
        if largest == 0 or array == node:
            return None
        if self.names[node] == "reduce-window":
            if largest != rank:
                return None
            windows = list(self._windows(node, rank))
            sizes = tuple(size for size, *_ in windows)
            axes = tuple(Axis(number, number, *steps) for number, (_, *steps) in enumerate(windows))
        else:
            dims = self._values(node, "dimensions", largest - rank)
            sizes = tuple(self.dims[array][dim] for dim in dims)
            kept = iter(range(rank))
            axes = tuple(
                Axis(reduced=dims.index(dim)) if dim in dims else Axis(next(kept, None)) for dim in range(largest)
            )
        # Initial values and the called computation are scalars.
        arrays = {operand for operand in operands if len(self.dims[operand]) == largest}
        read = ((operand, axes if operand in arrays else self._axes(node, operand)) for operand in operands)
        return Access(sizes, tuple(read))


def dot_axes(
    output: Sequence[float], left: Sequence[float], right: Sequence[float]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """Infer the axes of a dot's operands from the shapes of its result and of both operands; None if none fit.

    The result has the batch dimensions, then the free dimensions of the left operand, then those of the right one.
    Where several choices fit, the fewest dimensions are contracted, but at least one; batch dimensions come first; and
    the last dimensions of the left operand are contracted, with the first ones of the right operand, in their order.
    """
    output, left, right = list(output), list(left), list(right)
    shorter = min(len(left), len(right))
    for count in (*range(1, shorter + 1), 0):
        batch, split = len(left) + len(right) - len(output) - 2 * count, len(left) - count
        if not 0 <= batch <= shorter - count:
            continue
        lefts = _shared_dims(left, output[:batch], output[batch:split], count)
        rights = _shared_dims(right, output[:batch], output[split:], count)
        fits = [
            (of_left, of_right)
            for of_left in reversed(lefts)
            if list(of_left[batch:]) == sorted(of_left[batch:])
            for of_right in rights
            if [left[dim] for dim in of_left[batch:]] == [right[dim] for dim in of_right[batch:]]
        ]
        if fits:
            of_left, of_right = min(fits, key=lambda fit: _irregularities(batch, *fit))
            return _axes_of(len(left), batch, of_left, batch), _axes_of(len(right), batch, of_right, split)
    return None


def _shared_dims(dims: list[float], batch: list[float], free: list[float], count: int) -> list[tuple[int, ...]]:
    """Return the choices of batch dimensions, and then of `count` contracted ones, that leave the free dimensions."""
    return [
        chosen
        for chosen in permutations(range(len(dims)), len(batch) + count)
        if [dims[dim] for dim in chosen[: len(batch)]] == batch
        and [size for dim, size in enumerate(dims) if dim not in chosen] == free
    ]


def _irregularities(batch: int, of_left: Sequence[int], of_right: Sequence[int]) -> tuple[bool, bool, bool]:
    """Return whether batch dimensions of either operand do not come first, and contracted ones are out of order."""
    first = list(range(batch))
    unordered = list(of_right[batch:]) != sorted(of_right[batch:])
    return list(of_left[:batch]) != first, list(of_right[:batch]) != first, unordered


def _axes_of(rank: int, batch: int, chosen: Sequence[int], first_free: int) -> tuple[Axis, ...]:
    """Return the axes of an operand from its batch and contracted dimensions, and its first free one in the result."""
    known = {dim: Axis(place) if place < batch else Axis(reduced=place - batch) for place, dim in enumerate(chosen)}
    free = iter(range(first_free, first_free + rank))
    return tuple(known.get(dim) or Axis(next(free)) for dim in range(rank))


def operand_pairs(graph: Graph, node_ids: Int64, dims: Int64) -> Int64:
    """Infer the first two operands of configurable nodes, (nodes, 2), by a heuristic; -1 for a node without operands.

    Nodes are numbered in post-order of the operands. So the first operand has the smaller number, unless an earlier
    node used the second operand already, as the forward pass of a training step uses the weights. The operand of
    smaller number is therefore taken as the first, unless only the other order fits the dimensions that the layouts
    name, at least `dims`, (nodes, 2), and the shape of the result. A single operand is taken as both: the node is a
    product of a tensor with itself, or a reshape, whose second operand has no layout. If both orders fit, the wrong one
    may be chosen: dot(x, y) and dot(y, x) of square matrices are not distinguishable.
    """
    users, operands = np.unique(graph.edge_index[np.isin(graph.edge_index[:, 0], node_ids)], axis=0).T
    start, stop = (np.searchsorted(users, node_ids, side=side) for side in ("left", "right"))
    columns = np.stack([start, np.minimum(start + 1, stop - 1)], axis=1)
    pairs = np.where((stop > start)[:, None], np.append(operands, -1)[columns], -1)
    two = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    ascending, descending = (_fit(graph, node_ids[two], ends, dims[two]) for ends in (pairs[two], pairs[two, ::-1]))
    swap = two[~ascending & descending]
    pairs[swap] = pairs[swap, ::-1]
    return pairs


def _fit(graph: Graph, nodes: Int64, pairs: Int64, dims: Int64) -> NDArray[np.bool_]:
    """Return whether each node can have these operands in this order: (nodes,) bool."""
    ranks = node_ranks(graph.node_feat)
    fits = np.asarray((dims <= ranks[pairs]).all(axis=1))
    opcodes, shapes = graph.node_opcode[nodes], graph.node_feat[:, DIMS]
    convolutions, dots = (np.flatnonzero(opcodes == OPCODES[name]) for name in ("convolution", "dot"))
    left, right = pairs[convolutions].T
    fits[convolutions] &= _convolutions_fit(graph.node_feat[nodes[convolutions]], shapes[left], shapes[right])
    tensors = np.column_stack([nodes, pairs])[dots]
    first, number = distinct_rows(np.hstack([ranks[tensors], shapes[tensors].reshape(len(dots), 3 * LAYOUT_DIMS)]))
    known = [dot_axes(*(shapes[node, : ranks[node]].tolist() for node in row)) is not None for row in tensors[first]]
    fits[dots] &= np.array(known, dtype=np.bool_)[number]
    return fits


def _convolutions_fit(feat: Float32, left: Float32, right: Float32) -> NDArray[np.bool_]:
    """Return whether features (convolutions, 140) fit shapes (convolutions, 6) of operands: (convolutions,) bool."""

    def values(name: str) -> Float32:
        columns = COLUMNS[name]
        return feat[:, columns.start : columns.start + columns.width]

    def sizes(shapes: Float32, axes: str) -> Float32:
        inside = np.clip(values(axes), 0, LAYOUT_DIMS - 1).astype(np.int64)
        return np.take_along_axis(shapes, inside, axis=1)

    batch, feature = sizes(left, "convolution_input_batch_and_feature").T
    kernel_input, kernel_output = sizes(right, "convolution_kernel_input_and_output_feature").T
    output_batch, output_feature = sizes(feat[:, DIMS], "convolution_output_batch_and_feature").T
    spatial = sizes(right, "convolution_kernel_spatial")
    window = values("window_size")[:, : spatial.shape[1]]
    # Modules older than groups have 0 groups, which means 1.
    batch_groups, feature_groups = (
        np.maximum(values(groups)[:, 0], 1) for groups in ("batch_group_count", "feature_group_count")
    )
    fits: NDArray[np.bool_] = (
        (batch == output_batch * batch_groups)
        & (feature == kernel_input * feature_groups)
        & (kernel_output == output_feature)
        & ((spatial == window) | (window == 0)).all(axis=1)
    )
    return fits
