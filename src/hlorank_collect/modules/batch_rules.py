"""Dimensions of an instruction's operands and outputs that change together with the batch, for each opcode."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hlorank.hlo.hlo_pb2 import HloInstructionProto, ShapeProto, WindowDimension

Place = tuple[int, int]
"""A dimension of an operand (positions from 0) or output (-1, -2 and so on): position, dimension."""
Labels = Mapping[int, Sequence[int | Place | None]]
"""Position -> label of each dimension: equal ones change together; None cannot change."""


class NotScalableError(Exception):
    """An instruction that has no other batch; the message is the reason."""


class Op:
    """An instruction with the sizes of its operands and outputs, by position; several outputs if it is a tuple."""

    def __init__(self, instruction: HloInstructionProto, operands: Sequence[ShapeProto], unit: int) -> None:
        self.instruction, self.operands, self.unit = instruction, len(operands), unit
        outputs = list(instruction.shape.tuple_shapes) or [instruction.shape]
        shapes = {**dict(enumerate(operands)), **{-1 - number: shape for number, shape in enumerate(outputs)}}
        self.outputs = range(-1, -1 - len(outputs), -1)
        self.sizes = {position: tuple(shape.dimensions) for position, shape in shapes.items()}

    def dims(self, position: int) -> range:
        """Return the dimensions of an array."""
        return range(len(self.sizes[position]))


def tied(op: Op, at: Place, inner: int) -> Iterator[tuple[Place, int]]:
    """Yield the dimensions of an instruction that change with one of size n * op.unit, each with its `inner`.

    NotScalableError is raised where the instruction does something with the batch that depends on its size.
    """
    opcode = op.instruction.opcode
    if opcode in ("reshape", "bitcast"):
        yield _reshaped(op, at, inner)
        return
    if opcode not in _RULES:
        raise NotScalableError("it is not known how its output depends on the batch")
    rule, reason = _RULES[opcode]
    labels = rule(op)
    label = labels[at[0]][at[1]]
    if label is None:
        raise NotScalableError(reason)
    for position, others in labels.items():
        for dim in (dim for dim, other in enumerate(others) if other == label):
            size = op.sizes[position][dim]
            if size != op.sizes[at[0]][at[1]] and opcode not in ("slice", "concatenate"):
                raise NotScalableError("a slice cuts the batch")
            if size % op.unit:
                raise NotScalableError("the batch is concatenated with something else")
            yield (position, dim), inner


def _reshaped(op: Op, at: Place, inner: int) -> tuple[Place, int]:
    """Return the dimension that holds the batch on the other side of a reshape."""
    position = -1 if at[0] == 0 else 0
    sizes, others = op.sizes[at[0]], op.sizes[position]
    after = math.prod(sizes[at[1] + 1 :]) * inner  # elements after the batch, in memory
    for dim, size in enumerate(others):
        found, rest = divmod(after, math.prod(others[dim + 1 :]))
        if size > 1 and found and not rest and size % (op.unit // inner * found) == 0:
            return (position, dim), found
    raise NotScalableError("a reshape divides the batch")


def _same(op: Op) -> Labels:
    return {position: op.dims(position) for position in op.sizes}


def _same_if(may_change: Callable[[Op, int], bool]) -> Callable[[Op], Labels]:
    """Return the rule of an opcode that keeps dimensions apart, of which some may hold the batch."""

    def rule(op: Op) -> Labels:
        return {position: [dim if may_change(op, dim) else None for dim in op.dims(position)] for position in op.sizes}

    return rule


def _trivial(window: WindowDimension) -> bool:
    """Return True if a window moves over each element alone."""
    padded = window.padding_low or window.padding_high
    return window.size == window.stride == 1 and not padded and max(window.base_dilation, window.window_dilation) <= 1


def _sliced(op: Op, dim: int) -> bool:
    part = op.instruction.slice_dimensions[dim]
    return part.stride == 1 and not any(place % op.unit for place in (op.sizes[0][dim], part.start, part.limit))


def _unpadded(op: Op, dim: int) -> bool:
    padding = op.instruction.padding_config.dimensions[dim]
    return not (padding.edge_padding_low or padding.edge_padding_high or padding.interior_padding)


def _alone(op: Op) -> Labels:
    return {position: [(position, dim) for dim in op.dims(position)] for position in op.sizes}


def _others(op: Op, position: int, alone: Iterable[int], labels: Iterable[int]) -> list[int | Place | None]:
    """Return labels of the dimensions of an array: new labels where they change alone, else the given labels."""
    left, own = iter(labels), {*alone}
    return [(position, dim) if dim in own else next(left) for dim in op.dims(position)]


def _reduce(op: Op) -> Labels:
    dims, half = op.dims(0), op.operands // 2
    kept = [dim for dim in dims if dim not in op.instruction.dimensions]
    return {**dict.fromkeys(range(half), dims), **dict.fromkeys(op.outputs, kept)}


def _dot(op: Op) -> Labels:
    numbers = op.instruction.dot_dimension_numbers
    lhs, rhs = ([(side, dim) for dim in op.dims(side)] for side in (0, 1))
    lefts = [*numbers.lhs_batch_dimensions, *numbers.lhs_contracting_dimensions]
    rights = [*numbers.rhs_batch_dimensions, *numbers.rhs_contracting_dimensions]
    free = [lhs[dim] for dim in op.dims(0) if dim not in lefts] + [rhs[dim] for dim in op.dims(1) if dim not in rights]
    for left, right in zip(lefts, rights, strict=True):
        rhs[right] = lhs[left]
    return {0: lhs, 1: rhs, -1: [lhs[dim] for dim in numbers.lhs_batch_dimensions] + free}


def _convolution(op: Op) -> Labels:
    instruction, numbers = op.instruction, op.instruction.convolution_dimension_numbers
    features, batches = instruction.feature_group_count <= 1, instruction.batch_group_count <= 1
    image, kernel, output = (list[int | None]([None] * len(op.sizes[position])) for position in (0, 1, -1))
    if batches:
        image[numbers.input_batch_dimension] = output[numbers.output_batch_dimension] = 0
    if features:
        image[numbers.input_feature_dimension] = kernel[numbers.kernel_input_feature_dimension] = 1
    if features and batches:
        kernel[numbers.kernel_output_feature_dimension] = output[numbers.output_feature_dimension] = 2
    dims = zip(numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
    for number, ((first, last), window) in enumerate(zip(dims, instruction.window.dimensions, strict=True)):
        if _trivial(window):
            image[first] = output[last] = 3 + number
    return {0: image, 1: kernel, -1: output}


def _gather(op: Op) -> Labels:
    numbers = op.instruction.gather_dimension_numbers
    rows = [dim for dim in op.dims(-1) if dim not in numbers.offset_dims]
    indices = _others(op, 1, [numbers.index_vector_dim], rows)
    array = _others(op, 0, [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims], numbers.offset_dims)
    for dim, other in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        array[dim] = indices[other]
    return {0: array, 1: indices, -1: op.dims(-1)}


def _scatter(op: Op) -> Labels:
    numbers, count = op.instruction.scatter_dimension_numbers, op.operands // 2
    rows = [dim for dim in op.dims(count + 1) if dim not in numbers.update_window_dims]
    indices = _others(op, count, [numbers.index_vector_dim], rows)
    array = _others(op, 0, [*numbers.inserted_window_dims, *numbers.input_batching_dims], numbers.update_window_dims)
    for dim, other in zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        array[dim] = indices[other]
    updates = dict.fromkeys(range(count + 1, op.operands), op.dims(count + 1))
    return {**dict.fromkeys([*range(count), *op.outputs], array), count: indices, **updates}


_SAME = (
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "concatenate",
    "convert", "cosine", "count-leading-zeros", "divide", "dynamic-slice", "dynamic-update-slice", "erf", "exponential",
    "exponential-minus-one", "floor", "get-dimension-size", "imag", "iota", "is-finite", "log", "log-plus-one",
    "logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real",
    "reduce-precision", "remainder", "reverse", "rng", "round-nearest-afz", "round-nearest-even", "rsqrt", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sort", "sqrt", "stochastic-convert",
    "subtract", "tan", "tanh", "topk", "xor",
)  # fmt: skip
_WINDOW = (_same_if(lambda op, dim: _trivial(op.instruction.window.dimensions[dim])), "a window moves over the batch")
_RULES: dict[str, tuple[Callable[[Op], Labels], str]] = {
    **dict.fromkeys(_SAME, (_same, "")),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), _WINDOW),
    "broadcast": (lambda op: {0: op.instruction.dimensions, -1: op.dims(-1)}, ""),
    "constant": (_same_if(lambda *_: False), "a constant has the batch"),
    "convolution": (_convolution, "a convolution has windows or groups in the batch"),
    "dot": (_dot, ""),
    "gather": (_gather, ""),
    "pad": (_same_if(_unpadded), "the batch is padded"),
    "reduce": (_reduce, ""),
    "rng-bit-generator": (_alone, ""),
    "scatter": (_scatter, ""),
    "slice": (_same_if(_sliced), "a slice cuts the batch"),
    "transpose": (lambda op: {0: op.dims(0), -1: op.instruction.dimensions}, ""),
}
"""Opcode -> rule, and why a dimension cannot change; without tuples, calls, loops and branches."""
