"""Dimensions of an instruction's operands and outputs that change together with the batch, for each opcode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from hlorank.hlo.hlo_pb2 import HloInstructionProto, ShapeProto, WindowDimension

Place = tuple[int, int]
"""A dimension of an operand (positions from 0) or output (-1, -2 and so on): position, dimension."""


class NotScalableError(Exception):
    """An instruction that has no other batch; the message is the reason."""


class Op:
    """An instruction with the sizes of its operands and outputs, by position; several outputs if it is a tuple."""

    def __init__(self, instruction: HloInstructionProto, operands: Sequence[ShapeProto], batch: int) -> None:
        self.instruction, self.batch, self.operands = instruction, batch, len(operands)
        outputs = list(instruction.shape.tuple_shapes) or [instruction.shape]
        self.outputs = range(-1, -1 - len(outputs), -1)
        shapes = {**dict(enumerate(operands)), **dict(zip(self.outputs, outputs, strict=True))}
        self.sizes = {position: tuple(shape.dimensions) for position, shape in shapes.items()}

    def same(self, dim: int) -> list[Place]:
        """Return a dimension of all arrays that have it."""
        return [(position, dim) for position, sizes in self.sizes.items() if len(sizes) > dim]


Rule = Callable[[Op, Place, int], Iterable[Place]]
"""Maps an instruction, a dimension of size n * batch * inner, and batch * inner to the dimensions that change with it.

A rule raises NotScalableError where the instruction does something with the batch that depends on its size.
"""
_Groups = Callable[[Op], Iterable[Sequence[Place]]]


def tied(op: Op, at: Place, inner: int) -> Iterator[tuple[Place, int]]:
    """Yield the dimensions of an instruction that change with one of size n * batch * inner, each with its `inner`."""
    opcode = op.instruction.opcode
    if opcode in ("reshape", "bitcast"):
        yield _reshaped(op, at, inner)
        return
    if opcode not in _RULES:
        raise NotScalableError("it is not known how its output depends on the batch")
    unit = op.batch * inner
    size = op.sizes[at[0]][at[1]]
    for position, dim in _RULES[opcode](op, at, unit):
        other = op.sizes[position][dim]
        if other != size and opcode not in ("slice", "concatenate"):
            raise NotScalableError("a slice cuts the batch")
        if other % unit:
            raise NotScalableError("the batch is concatenated with something else")
        yield (position, dim), inner


def _reshaped(op: Op, at: Place, inner: int) -> tuple[Place, int]:
    """Return the dimension that holds the batch on the other side of a reshape."""
    position = -1 if at[0] == 0 else 0
    sizes, others = op.sizes[at[0]], op.sizes[position]
    after = math.prod(sizes[at[1] + 1 :]) * inner  # elements after the batch, in memory
    for dim, size in enumerate(others):
        found, rest = divmod(after, math.prod(others[dim + 1 :]))
        if size > 1 and found and not rest and size % (op.batch * found) == 0:
            return (position, dim), found
    raise NotScalableError("a reshape divides the batch")


def _grouped(groups: _Groups) -> Rule:
    """Return the rule of an opcode whose dimensions change together in groups."""
    return lambda op, at, _: [place for group in groups(op) if at in group for place in group]


def _elementwise(op: Op, at: Place, _: int) -> Iterable[Place]:
    return op.same(at[1])


def _free(_: Op, __: Place, ___: int) -> Iterable[Place]:
    return ()


def _broadcast(op: Op) -> Iterator[Sequence[Place]]:
    yield from (((0, source), (-1, dim)) for source, dim in enumerate(op.instruction.dimensions))


def _transpose(op: Op) -> Iterator[Sequence[Place]]:
    yield from (((0, source), (-1, dim)) for dim, source in enumerate(op.instruction.dimensions))


def _reduce(op: Op) -> Iterator[Sequence[Place]]:
    kept = [dim for dim in range(len(op.sizes[0])) if dim not in op.instruction.dimensions]
    for source in range(len(op.sizes[0])):
        outputs = [(output, kept.index(source)) for output in op.outputs] if source in kept else []
        yield [*((array, source) for array in range(op.operands // 2)), *outputs]


def _dot(op: Op) -> Iterator[Sequence[Place]]:
    numbers = op.instruction.dot_dimension_numbers
    batch = [*zip(numbers.lhs_batch_dimensions, numbers.rhs_batch_dimensions, strict=True)]
    contracted = [*zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)]
    used = {(side, pair[side]) for pair in batch + contracted for side in (0, 1)}
    free = [(side, dim) for side in (0, 1) for dim in range(len(op.sizes[side])) if (side, dim) not in used]
    yield from (((0, lhs), (1, rhs), (-1, dim)) for dim, (lhs, rhs) in enumerate(batch))
    yield from (((0, lhs), (1, rhs)) for lhs, rhs in contracted)
    yield from ((place, (-1, dim)) for dim, place in enumerate(free, len(batch)))


def _trivial(window: WindowDimension) -> bool:
    """Return True if a window moves over each element alone."""
    padded = window.padding_low or window.padding_high
    return window.size == window.stride == 1 and not padded and max(window.base_dilation, window.window_dilation) <= 1


def _convolution(op: Op, at: Place, _: int) -> Iterable[Place]:
    instruction, numbers = op.instruction, op.instruction.convolution_dimension_numbers
    features, batches = instruction.feature_group_count <= 1, instruction.batch_group_count <= 1
    outputs = features and batches
    groups = [
        (batches, (0, numbers.input_batch_dimension), (-1, numbers.output_batch_dimension)),
        (features, (0, numbers.input_feature_dimension), (1, numbers.kernel_input_feature_dimension)),
        (outputs, (1, numbers.kernel_output_feature_dimension), (-1, numbers.output_feature_dimension)),
    ]
    dims = zip(numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
    for (first, last), window in zip(dims, instruction.window.dimensions, strict=True):
        groups.append((_trivial(window), (0, first), (-1, last)))
    for allowed, one, other in groups:
        if allowed and at in (one, other):
            return one, other
    raise NotScalableError("a convolution has windows or groups in the batch")


def _window(op: Op, at: Place, _: int) -> Iterable[Place]:
    if not _trivial(op.instruction.window.dimensions[at[1]]):
        raise NotScalableError("a window moves over the batch")
    return op.same(at[1])


def _slice(op: Op, at: Place, unit: int) -> Iterable[Place]:
    part = op.instruction.slice_dimensions[at[1]]
    if op.sizes[0][at[1]] % unit or part.start % unit or part.limit % unit or part.stride != 1:
        raise NotScalableError("a slice cuts the batch")
    return op.same(at[1])


def _pad(op: Op, at: Place, _: int) -> Iterable[Place]:
    padding = op.instruction.padding_config.dimensions[at[1]]
    if padding.edge_padding_low or padding.edge_padding_high or padding.interior_padding:
        raise NotScalableError("the batch is padded")
    return op.same(at[1])


def _leading(op: Op, at: Place, _: int) -> Iterable[Place]:
    places = op.same(at[1])
    if len(places) < sum(bool(sizes) for sizes in op.sizes.values()):
        raise NotScalableError("the batch is not among the dimensions that stay")
    return places


def _indexed(array: int, without: Iterable[int], windows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a dimension of an indexed array and one of its slices."""
    left_out = set(without)
    yield from zip((dim for dim in range(array) if dim not in left_out), windows, strict=True)


def _gather(op: Op) -> Iterator[Sequence[Place]]:
    numbers = op.instruction.gather_dimension_numbers
    array, indices, slices = len(op.sizes[0]), len(op.sizes[1]), len(op.sizes[-1])
    without = [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims]
    yield from (((0, dim), (-1, window)) for dim, window in _indexed(array, without, numbers.offset_dims))
    rows = [dim for dim in range(slices) if dim not in {*numbers.offset_dims}]
    yield from (((1, dim), (-1, row)) for dim, row in _indexed(indices, [numbers.index_vector_dim], rows))
    batch = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    yield from (((0, dim), (1, other)) for dim, other in batch)


def _scatter(op: Op) -> Iterator[Sequence[Place]]:
    numbers, count = op.instruction.scatter_dimension_numbers, op.operands // 2
    arrays, updates = [*range(count), *op.outputs], [*range(count + 1, op.operands)]
    without = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
    sizes, slices = len(op.sizes[0]), len(op.sizes[count + 1])
    windows = dict(_indexed(sizes, without, numbers.update_window_dims))
    batch = dict(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    for dim in range(sizes):
        others = [(update, windows[dim]) for update in updates] if dim in windows else []
        others += [(count, batch[dim])] if dim in batch else []
        yield [*((array, dim) for array in arrays), *others]
    rows = [dim for dim in range(slices) if dim not in {*numbers.update_window_dims}]
    for dim, row in _indexed(len(op.sizes[count]), [numbers.index_vector_dim], rows):
        yield [(count, dim), *((update, row) for update in updates)]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "concatenate", "convert",
            "cosine", "count-leading-zeros", "divide", "dynamic-slice", "dynamic-update-slice", "erf", "exponential",
            "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one", "logistic", "map", "maximum",
            "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce-precision", "remainder",
            "reverse", "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
            "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sort", "sqrt", "stochastic-convert",
            "subtract", "tan", "tanh", "xor",
        ),
        _elementwise,
    ),
    **dict.fromkeys(("constant", "get-dimension-size", "iota", "parameter", "rng", "rng-bit-generator"), _free),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), _window),
    **dict.fromkeys(("bitcast-convert", "topk"), _leading),
    "broadcast": _grouped(_broadcast),
    "convolution": _convolution,
    "dot": _grouped(_dot),
    "gather": _grouped(_gather),
    "pad": _pad,
    "reduce": _grouped(_reduce),
    "scatter": _grouped(_scatter),
    "slice": _slice,
    "transpose": _grouped(_transpose),
}  # fmt: skip
"""Opcode -> rule, for those that are not tuples, calls, loops and branches."""
