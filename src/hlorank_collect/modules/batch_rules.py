"""Dimensions of an instruction's operands and outputs that change together with the batch, for each opcode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hlorank.hlo.hlo_pb2 import HloInstructionProto, ShapeProto, WindowDimension


class Mark(NamedTuple):
    """A dimension that holds the batch, merged with others: its size is outer * batch * inner."""

    outer: int = 1
    inner: int = 1


class NotScalableError(Exception):
    """An instruction that has no smaller batch; the message is the reason."""


class Op:
    """An instruction with the sizes of its operands and outputs, by position.

    Operands have positions from 0; outputs have -1, -2 and so on, several if the output is a tuple.
    """

    def __init__(self, one: HloInstructionProto, operands: Sequence[ShapeProto], batch: int) -> None:
        self.one, self.batch = one, batch
        self.operands = len(operands)
        outputs = list(one.shape.tuple_shapes) or [one.shape]
        self.outputs = range(-1, -1 - len(outputs), -1)
        shapes = {**dict(enumerate(operands)), **dict(zip(self.outputs, outputs, strict=True))}
        self.sizes = {position: tuple(shape.dimensions) for position, shape in shapes.items()}


class Marked(NamedTuple):
    """A marked dimension of an operand or output."""

    position: int
    dim: int
    mark: Mark


Rule = Callable[[Op, Marked], Iterator[Marked]]
"""Maps an instruction and a marked dimension to those that have its mark, too; raises NotScalableError."""
_Pair = tuple[tuple[int, int], tuple[int, int]]  # two places (position, dim) of equal size


def _free(_: Op, __: Marked) -> Iterator[Marked]:
    yield from ()


def _paired(pairs: Iterable[_Pair], at: Marked) -> Iterator[Marked]:
    for first, second in pairs:
        if at[:2] in (first, second):
            yield Marked(*(second if at[:2] == first else first), at.mark)


def _elementwise(op: Op, at: Marked) -> Iterator[Marked]:
    rank = len(op.sizes[at.position])
    yield from (at._replace(position=other) for other, sizes in op.sizes.items() if len(sizes) == rank)


def _broadcast(op: Op, at: Marked) -> Iterator[Marked]:
    yield from _paired([((0, one), (-1, dim)) for one, dim in enumerate(op.one.dimensions)], at)


def _transpose(op: Op, at: Marked) -> Iterator[Marked]:
    yield from _paired([((0, dim), (-1, one)) for one, dim in enumerate(op.one.dimensions)], at)


def _reshape(op: Op, at: Marked) -> Iterator[Marked]:
    other = -1 if at.position == 0 else 0
    sizes, others = op.sizes[at.position], op.sizes[other]
    outer = math.prod(sizes[: at.dim]) * at.mark.outer
    inner = math.prod(sizes[at.dim + 1 :]) * at.mark.inner
    for dim, size in enumerate(others):
        before, after = math.prod(others[:dim]), math.prod(others[dim + 1 :])
        found = Mark(outer // before, inner // after)
        exact = found.outer * before == outer and found.inner * after == inner
        if size > 1 and exact and found.outer * op.batch * found.inner == size:
            yield Marked(other, dim, found)
            return
    raise NotScalableError("a reshape divides the batch")


def _reduce(op: Op, at: Marked) -> Iterator[Marked]:
    kept = [dim for dim in range(len(op.sizes[0])) if dim not in op.one.dimensions]
    source = kept[at.dim] if at.position < 0 else at.dim
    yield from (Marked(other, source, at.mark) for other in range(op.operands // 2))
    if source in kept:
        yield from (Marked(other, kept.index(source), at.mark) for other in op.outputs)


def _dot(op: Op, at: Marked) -> Iterator[Marked]:
    numbers = op.one.dot_dimension_numbers
    batch = [*zip(numbers.lhs_batch_dimensions, numbers.rhs_batch_dimensions, strict=True)]
    contracted = [*zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)]
    used = {(side, pair[side]) for pair in batch + contracted for side in (0, 1)}
    free = [(side, dim) for side in (0, 1) for dim in range(len(op.sizes[side])) if (side, dim) not in used]
    pairs: list[_Pair] = [((0, lhs), (1, rhs)) for lhs, rhs in batch + contracted]
    pairs += [((0, lhs), (-1, number)) for number, (lhs, _) in enumerate(batch)]
    pairs += [(place, (-1, number)) for number, place in enumerate(free, len(batch))]
    yield from _paired(pairs, at)


def _trivial(window: WindowDimension) -> bool:
    """Return True if a window moves over each element alone."""
    padded = window.padding_low or window.padding_high
    return window.size == window.stride == 1 and not padded and max(window.base_dilation, window.window_dilation) <= 1


def _convolution(op: Op, at: Marked) -> Iterator[Marked]:
    one, numbers = op.one, op.one.convolution_dimension_numbers
    groups = max(one.feature_group_count, one.batch_group_count)
    ties: list[tuple[_Pair, bool]] = [
        (((0, numbers.input_batch_dimension), (-1, numbers.output_batch_dimension)), one.batch_group_count <= 1),
        (
            ((0, numbers.input_feature_dimension), (1, numbers.kernel_input_feature_dimension)),
            one.feature_group_count <= 1,
        ),
        (((1, numbers.kernel_output_feature_dimension), (-1, numbers.output_feature_dimension)), groups <= 1),
    ]
    dims = zip(numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
    for (first, last), window in zip(dims, one.window.dimensions, strict=True):
        ties.append((((0, first), (-1, last)), _trivial(window)))
    for pair, allowed in ties:
        if at[:2] in pair:
            if not allowed:
                raise NotScalableError("a convolution has windows or groups in the batch")
            yield from _paired([pair], at)
            return
    raise NotScalableError("the batch is in the windows of a convolution")


def _window(op: Op, at: Marked) -> Iterator[Marked]:
    if not _trivial(op.one.window.dimensions[at.dim]):
        raise NotScalableError("a window moves over the batch")
    yield from _elementwise(op, at)


def _slice(op: Op, at: Marked) -> Iterator[Marked]:
    part, unit = op.one.slice_dimensions[at.dim], op.batch * at.mark.inner
    whole, rest = divmod(op.sizes[0][at.dim], unit)
    if rest or part.start % unit or part.limit % unit or part.stride != 1:
        raise NotScalableError("a slice cuts the batch")
    yield Marked(0, at.dim, Mark(whole, at.mark.inner))
    yield Marked(-1, at.dim, Mark((part.limit - part.start) // unit, at.mark.inner))


def _concatenate(op: Op, at: Marked) -> Iterator[Marked]:
    if at.dim != op.one.dimensions[0]:
        yield from _elementwise(op, at)
        return
    for other, sizes in op.sizes.items():
        outer, rest = divmod(sizes[at.dim], op.batch * at.mark.inner)
        if rest:
            raise NotScalableError("the batch is concatenated with something else")
        yield Marked(other, at.dim, Mark(outer, at.mark.inner))


def _pad(op: Op, at: Marked) -> Iterator[Marked]:
    padding = op.one.padding_config.dimensions[at.dim]
    if padding.edge_padding_low or padding.edge_padding_high or padding.interior_padding:
        raise NotScalableError("the batch is padded")
    yield from _elementwise(op, at)


def _dynamic_slice(op: Op, at: Marked) -> Iterator[Marked]:
    """Tie the operand, the update if there is one, and the output."""
    arrays = [position for position, sizes in op.sizes.items() if sizes]
    if len({op.sizes[position][at.dim] for position in arrays}) > 1:
        raise NotScalableError("a slice cuts the batch")
    yield from (at._replace(position=position) for position in arrays)


def _windows(whole: int, without: Iterable[int], windows: Iterable[int]) -> list[tuple[int, int]]:
    """Return the pairs of a dimension of an indexed array and one of its slices."""
    left_out = set(without)
    return [*zip((dim for dim in range(whole) if dim not in left_out), windows, strict=True)]


def _rows(indices: int, vector: int, slices: int, windows: Iterable[int]) -> list[tuple[int, int]]:
    """Return the pairs of a dimension of an array of indices and one of the slices at these indices."""
    inside = set(windows)
    rows = (dim for dim in range(slices) if dim not in inside)
    return [*zip((dim for dim in range(indices) if dim != vector), rows, strict=True)]


def _gather(op: Op, at: Marked) -> Iterator[Marked]:
    numbers = op.one.gather_dimension_numbers
    without = [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims]
    windows = _windows(len(op.sizes[0]), without, numbers.offset_dims)
    if any(at[:2] in ((0, dim), (-1, window)) and op.sizes[0][dim] != op.sizes[-1][window] for dim, window in windows):
        raise NotScalableError("a slice cuts the batch")
    rows = _rows(len(op.sizes[1]), numbers.index_vector_dim, len(op.sizes[-1]), numbers.offset_dims)
    batch = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    pairs: list[_Pair] = [((0, dim), (-1, window)) for dim, window in windows]
    pairs += [((1, dim), (-1, row)) for dim, row in rows]
    pairs += [((0, dim), (1, other)) for dim, other in batch]
    yield from _paired(pairs, at)


def _scatter(op: Op, at: Marked) -> Iterator[Marked]:
    numbers, count = op.one.scatter_dimension_numbers, op.operands // 2
    # Arrays, updates, and outputs have the same dimensions among themselves: the first of each stands for all.
    members = {0: [*range(count), *op.outputs], count: [count], count + 1: [*range(count + 1, op.operands)]}
    first = next(first for first, same in members.items() if at.position in same)
    own = at._replace(position=first)
    without = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
    windows = _windows(len(op.sizes[0]), without, numbers.update_window_dims)
    updates = op.sizes[count + 1]
    if any(
        own[:2] in ((0, dim), (count + 1, window)) and op.sizes[0][dim] != updates[window] for dim, window in windows
    ):
        raise NotScalableError("a slice cuts the batch")
    rows = _rows(len(op.sizes[count]), numbers.index_vector_dim, len(updates), numbers.update_window_dims)
    batch = zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    pairs: list[_Pair] = [((0, dim), (count + 1, window)) for dim, window in windows]
    pairs += [((count, dim), (count + 1, row)) for dim, row in rows]
    pairs += [((0, dim), (count, other)) for dim, other in batch]
    for found in (own, *_paired(pairs, own)):
        yield from (found._replace(position=member) for member in members[found.position])


def _leading(op: Op, at: Marked) -> Iterator[Marked]:
    arrays = {position: sizes for position, sizes in op.sizes.items() if sizes}
    if any(sizes[at.dim : at.dim + 1] != (op.sizes[at.position][at.dim],) for sizes in arrays.values()):
        raise NotScalableError("the batch is not among the dimensions that stay")
    yield from (at._replace(position=position) for position in arrays)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert", "cosine",
            "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor", "imag",
            "is-finite", "log", "log-plus-one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not",
            "or", "popcnt", "power", "real", "reduce-precision", "remainder", "reverse", "round-nearest-afz",
            "round-nearest-even", "rsqrt", "select", "shift-left", "shift-right-arithmetic", "shift-right-logical",
            "sign", "sine", "sort", "sqrt", "stochastic-convert", "subtract", "tan", "tanh", "xor",
        ),
        _elementwise,
    ),
    **dict.fromkeys(("constant", "get-dimension-size", "iota", "parameter", "rng", "rng-bit-generator"), _free),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), _window),
    **dict.fromkeys(("bitcast-convert", "topk"), _leading),
    **dict.fromkeys(("dynamic-slice", "dynamic-update-slice"), _dynamic_slice),
    **dict.fromkeys(("reshape", "bitcast"), _reshape),
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "dot": _dot,
    "gather": _gather,
    "pad": _pad,
    "reduce": _reduce,
    "scatter": _scatter,
    "slice": _slice,
    "transpose": _transpose,
}  # fmt: skip
"""Opcode -> rule, for those that are not tuples, calls, loops and branches."""
