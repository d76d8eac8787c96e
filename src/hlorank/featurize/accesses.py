"""Elements of its operands that an instruction reads for an element of its result, dimension by dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hlorank.data.graph import Graph
from hlorank.featurize.columns import DIMS, element_bytes, node_layout, node_ranks
from hlorank.featurize.operands import operand_pairs
from hlorank.hlo.node_features import (
    CONVOLUTION_INPUT,
    CONVOLUTION_INPUT_SPATIAL,
    CONVOLUTION_KERNEL,
    CONVOLUTION_KERNEL_SPATIAL,
    CONVOLUTION_OUTPUT,
    DIMENSIONS,
    OPCODES,
    WINDOW,
    Columns,
)

_NAMES = {number: name for name, number in OPCODES.items()}
_SIZE, _STRIDE, _, _, _DILATION, _BASE_DILATION = WINDOW


class Axis(NamedTuple):
    """Places along one dimension of an operand that are read for one element of a result.

    They are (stride * r + dilation * k) / base up to an offset, where they are whole: r is the element's place along
    dimension `result`, 0 without one, and k runs over the reduced dimension `reduced`.

    Attributes:
        result: a dimension of the result, or None.
        reduced: a reduced dimension, or None.
        stride: of the result's places.
        dilation: of the reduced places.
        base: divisor of both.
    """

    result: int | None = None
    reduced: int | None = None
    stride: int = 1
    dilation: int = 1
    base: int = 1


class Access(NamedTuple):
    """Operands and dimensions that an instruction reads.

    Attributes:
        reduced: sizes of the reduced dimensions: the contracted ones of a dot; the window, then the input features (of
            a group), of a convolution; the dimensions or the window of a reduction; else none.
        operands: node and axes of each distinct operand; None where no dimensions correspond.
    """

    reduced: tuple[int, ...]
    operands: tuple[tuple[int, tuple[Axis, ...] | None], ...]


class Accesses:
    """The instructions of a graph with their shapes, and what each one reads of its operands.

    The order of two operands and the contracted dimensions of a dot are not among the official features; they are
    inferred from the shapes (`operand_pairs`, `dot_axes`).

    Attributes:
        dims: the dimensions of each node, at most six; those of an empty array are at least 1.
        minor_to_major: the layout of each node, row-major where none is known.
        operands: the operands of each node, and the roots of the computations that it calls.
        names: the opcode of each node, empty if unknown.
        element_bytes: (nodes,) int64, size of an element, 0 for tuples.
    """

    def __init__(self, graph: Graph) -> None:
        feat = graph.node_feat
        self._feat = feat
        self._graph = graph
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

    def elements(self, node: int) -> int:
        """Return the number of elements of a node's result."""
        return int(np.prod(self.dims[node], dtype=np.float64))

    def access(self, node: int) -> Access:
        """Return what a node reads; for a `fusion` or another call, nothing is known but its operands."""
        name = self.names[node]
        found = None
        if name == "dot":
            found = self._dot(node)
        elif name == "convolution":
            found = self._convolution(node)
        elif name in ("reduce", "reduce-window"):
            found = self._reduction(node)
        if found is not None:
            return found
        return Access((), tuple((operand, self._axes(node, operand)) for operand in self.operands[node]))

    def _axes(self, node: int, operand: int) -> tuple[Axis, ...] | None:
        name, rank = self.names[node], len(self.dims[operand])
        if rank == 0:
            return ()
        if name == "broadcast":
            return tuple(Axis(dim) for dim in self._values(node, DIMENSIONS, rank))
        if name == "transpose":
            results = np.argsort(self._values(node, DIMENSIONS, rank)).tolist()
            return tuple(Axis(dim) for dim in results)
        return tuple(Axis(dim) for dim in range(rank)) if rank == len(self.dims[node]) else None

    def _values(self, node: int, columns: Columns, count: int) -> list[int]:
        count = min(count, columns.width)
        values: list[int] = self._feat[node, columns.start : columns.start + count].astype(np.int64).tolist()
        return values

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
        if image < 0 or not 0 <= spatial <= CONVOLUTION_INPUT_SPATIAL.width:
            return None
        image_batch, image_feature = self._values(node, CONVOLUTION_INPUT, 2)
        kernel_input, kernel_output = self._values(node, CONVOLUTION_KERNEL, 2)
        batch, feature = self._values(node, CONVOLUTION_OUTPUT, 2)
        # The spatial dimensions of the result have no column; all compilers seen number them upwards.
        places = [dim for dim in range(rank) if dim not in (batch, feature)]
        image_axes = {image_batch: Axis(batch), image_feature: Axis(reduced=spatial)}
        kernel_axes = {kernel_input: Axis(reduced=spatial), kernel_output: Axis(feature)}
        image_places = self._values(node, CONVOLUTION_INPUT_SPATIAL, spatial)
        kernel_places = self._values(node, CONVOLUTION_KERNEL_SPATIAL, spatial)
        windows = list(self._windows(node, spatial))
        for number, (_, *steps) in enumerate(windows):
            image_axes[image_places[number]] = Axis(places[number], number, *steps)
            kernel_axes[kernel_places[number]] = Axis(reduced=number)
        if any(sorted(axes) != list(range(rank)) for axes in (image_axes, kernel_axes)):
            return None
        if any(len(self.dims[operand]) != rank for operand in (image, kernel)):
            return None
        reduced = (*(size for size, *_ in windows), self.dims[kernel][kernel_input])
        return Access(
            reduced,
            (
                (image, tuple(image_axes[dim] for dim in range(rank))),
                (kernel, tuple(kernel_axes[dim] for dim in range(rank))),
            ),
        )

    def _windows(self, node: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Return size, stride, dilation and base dilation of each dimension of a window, 1 where they are missing."""
        columns = (self._values(node, part, count) for part in (_SIZE, _STRIDE, _DILATION, _BASE_DILATION))
        return ((max(a, 1), max(b, 1), max(c, 1), max(d, 1)) for a, b, c, d in zip(*columns, strict=True))

    def _reduction(self, node: int) -> Access | None:
        rank = len(self.dims[node])
        largest = max((len(self.dims[operand]) for operand in self.operands[node]), default=0)
        if largest == 0:
            return None
        # Initial values and the called computation are scalars.
        arrays = [operand for operand in self.operands[node] if len(self.dims[operand]) == largest]
        if self.names[node] == "reduce-window":
            if largest != rank:
                return None
            windows = list(self._windows(node, rank))
            sizes = tuple(size for size, *_ in windows)
            axes = tuple(Axis(number, number, *steps) for number, (_, *steps) in enumerate(windows))
        else:
            dims = self._values(node, DIMENSIONS, largest - rank)
            sizes = tuple(self.dims[arrays[0]][dim] for dim in dims)
            kept = iter(range(rank))
            axes = tuple(
                Axis(reduced=dims.index(dim)) if dim in dims else Axis(next(kept, None)) for dim in range(largest)
            )
        others = [operand for operand in self.operands[node] if operand not in arrays]
        return Access(sizes, (*((one, axes) for one in arrays), *((one, self._axes(node, one)) for one in others)))


def dot_axes(
    output: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """Infer the axes of a dot's operands from the shapes.

    The result has the batch dimensions, which are the first of both operands, then the free dimensions of the left
    operand, then those of the right one. Where several choices fit, the fewest dimensions are contracted; of the left
    operand the last ones, of the right operand the first ones.

    Args:
        output: dimensions of the result.
        left: dimensions of the left operand.
        right: dimensions of the right operand.

    Returns:
        The axes of both operands; None if no choice fits.
    """
    output, left, right = list(output), list(left), list(right)
    for count in range(1, min(len(left), len(right)) + 1):
        batch = len(left) + len(right) - len(output) - 2 * count
        if not 0 <= batch <= min(len(left), len(right)) - count:
            continue
        if not left[:batch] == right[:batch] == output[:batch]:
            continue
        split = len(left) - count
        lefts = _free(left, batch, count, output[batch:split])[::-1]
        rights = _free(right, batch, count, output[split:])
        for of_left in lefts:
            for of_right in rights:
                if [left[dim] for dim in of_left] == [right[dim] for dim in of_right]:
                    return _of_operand(len(left), batch, of_left, batch), _of_operand(
                        len(right), batch, of_right, split
                    )
    return None


def _free(dims: list[int], batch: int, count: int, expected: list[int]) -> list[tuple[int, ...]]:
    """Return the choices of `count` contracted dimensions after which those `expected` are left."""
    choices = combinations(range(batch, len(dims)), count)
    return [one for one in choices if [dims[d] for d in range(batch, len(dims)) if d not in one] == expected]


def _of_operand(rank: int, batch: int, contracted: Sequence[int], first_free: int) -> tuple[Axis, ...]:
    free = iter(range(first_free, first_free + rank))
    return tuple(
        Axis(dim) if dim < batch else Axis(reduced=contracted.index(dim)) if dim in contracted else Axis(next(free))
        for dim in range(rank)
    )
