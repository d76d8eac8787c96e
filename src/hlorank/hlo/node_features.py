"""The opcode ids and the 140 node features of the official files."""

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import NODE_FEATURES, Float32, Int64
from hlorank.hlo.hlo_pb2 import HloInstructionProto, ShapeProto

# In the order of their ids, 1..120; `trace` (97) and `tuple-select` (101) are no longer part of HLO.
_NAMES = """
    abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute
    count-leading-zeros compare complex concatenate conditional constant convert convolution copy copy-done
    copy-start cosine custom-call divide domain dot dynamic-slice dynamic-update-slice exponential
    exponential-minus-one fft floor fusion gather get-dimension-size set-dimension-size get-tuple-element imag
    infeed iota is-finite log log-plus-one and not or xor map maximum minimum multiply negate outfeed pad parameter
    partition-id popcnt power real recv recv-done reduce reduce-precision reduce-window remainder replica-id reshape
    reverse rng rng-get-and-update-state rng-bit-generator round-nearest-afz rsqrt scatter select select-and-scatter
    send send-done shift-left shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract tanh
    trace transpose triangular-solve tuple tuple-select while cbrt all-gather collective-permute-start
    collective-permute-done logistic dynamic-reshape all-reduce-start all-reduce-done reduce-scatter
    all-gather-start all-gather-done opt-barrier async-start async-update async-done round-nearest-even
    stochastic-convert tan
"""
OPCODES = {name: number for number, name in enumerate(_NAMES.split(), start=1)}
CONFIGURABLE = ("convolution", "dot", "reshape")


_Values = Callable[[Any], Collection[int]]


class Columns(NamedTuple):
    """Columns of one attribute: its first `width` values and, with `totals`, the sum and product of all."""

    name: str
    start: int
    width: int
    totals: bool = False
    message: str = ""
    """Field of the instructions in whose message the values are; empty: in the instruction."""
    values: _Values | None = None

    @property
    def stop(self) -> int:
        """Column after the last one."""
        return self.start + self.width + 2 * self.totals


def _numbers(*fields: str) -> _Values:
    return lambda message: [getattr(message, field) for field in fields]


def _each(repeated: str, field: str) -> _Values:
    """Return a function that lists a field of each message of a repeated field."""
    return lambda message: [getattr(part, field) for part in getattr(message, repeated)]


def _reversals(window: Any) -> list[int]:
    flags = [dimension.window_reversal for dimension in window.dimensions]
    return [sum(flags), len(flags) - sum(flags)]


_CONVOLUTION = "convolution_dimension_numbers"
# Name, number of values, whether their sum and product follow, and message and values as in `Columns`.
_TABLE: tuple[tuple[str, int, bool, str, _Values | None], ...] = (
    ("is_root", 1, False, "", None),
    ("unused", 1, False, "", None),
    ("element_type", 19, False, "", None),
    ("shape", 6, True, "shape", attrgetter("dimensions")),
    ("tuple_size", 1, False, "shape", lambda shape: [len(shape.tuple_shapes)]),
    ("parameter_number", 1, False, "", _numbers("parameter_number")),
    ("dimensions", 6, False, "", attrgetter("dimensions")),
    ("window_size", 6, True, "window", _each("dimensions", "size")),
    ("window_stride", 6, True, "window", _each("dimensions", "stride")),
    ("window_padding_low", 6, True, "window", _each("dimensions", "padding_low")),
    ("window_padding_high", 6, True, "window", _each("dimensions", "padding_high")),
    ("window_dilation", 6, True, "window", _each("dimensions", "window_dilation")),
    ("window_base_dilation", 6, True, "window", _each("dimensions", "base_dilation")),
    ("window_reversal", 6, False, "window", _each("dimensions", "window_reversal")),
    ("window_reversal_counts", 2, False, "window", _reversals),
    ("convolution_input_batch_and_feature", 2, False, _CONVOLUTION,
     _numbers("input_batch_dimension", "input_feature_dimension")),
    ("convolution_input_spatial", 4, False, _CONVOLUTION, attrgetter("input_spatial_dimensions")),
    ("convolution_kernel_input_and_output_feature", 2, False, _CONVOLUTION,
     _numbers("kernel_input_feature_dimension", "kernel_output_feature_dimension")),
    ("convolution_kernel_spatial", 4, False, _CONVOLUTION, attrgetter("kernel_spatial_dimensions")),
    ("convolution_output_batch_and_feature", 2, False, _CONVOLUTION,
     _numbers("output_batch_dimension", "output_feature_dimension")),
    ("feature_group_count", 1, False, "", _numbers("feature_group_count")),
    ("batch_group_count", 1, False, "", _numbers("batch_group_count")),
    ("slice_start", 2, True, "", _each("slice_dimensions", "start")),
    ("slice_stride", 2, True, "", _each("slice_dimensions", "stride")),
    ("slice_limit", 2, True, "", _each("slice_dimensions", "limit")),
    ("dynamic_slice_sizes", 2, True, "", attrgetter("dynamic_slice_sizes")),
    ("padding_low", 2, True, "padding_config", _each("dimensions", "edge_padding_low")),
    ("padding_high", 2, True, "padding_config", _each("dimensions", "edge_padding_high")),
    ("is_stable", 1, False, "", _numbers("is_stable")),
    ("minor_to_major", 6, False, "shape", attrgetter("layout.minor_to_major")),
)  # fmt: skip
_STARTS = accumulate((width + 2 * totals for _, width, totals, _, _ in _TABLE), initial=0)
COLUMNS = {row[0]: Columns(row[0], start, *row[1:]) for start, row in zip(_STARTS, _TABLE, strict=False)}
"""All 140 columns, in order, by the name of their attribute."""
ELEMENT_TYPE, SHAPE, DIMENSIONS = COLUMNS["element_type"], COLUMNS["shape"], COLUMNS["dimensions"]

# By the number of xla.PrimitiveType.
_ELEMENTS = (
    "invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple", "opaque",
    "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz",
    "s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu", "buffer", "f6e3m2fn", "f6e2m3fn",
)  # fmt: skip

# xla.PrimitiveType of each one-hot column: invalid, pred, s8 to s64, u8 to u64, f16 to f64, bf16, c64, c128, tuple,
# opaque, token. Later types have no column.
_TYPE_NUMBERS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17])


def element_type(shape: ShapeProto) -> str:
    """Return the name of the type of a shape's elements, such as `f32`."""
    known = 0 <= shape.element_type < len(_ELEMENTS)
    return _ELEMENTS[shape.element_type] if known else f"type{shape.element_type}"


def shape_text(shape: ShapeProto) -> str:
    """Return a shape as XLA writes it, without its layout, such as `f32[8,128]`."""
    if shape.tuple_shapes:
        return f"({', '.join(map(shape_text, shape.tuple_shapes))})"
    return f"{element_type(shape)}[{','.join(map(str, shape.dimensions))}]"


def has_column(shape: ShapeProto) -> bool:
    """Return whether the features have a column for the type of a shape's elements."""
    return shape.element_type in _TYPE_NUMBERS


def opcode_ids(instructions: Sequence[HloInstructionProto]) -> NDArray[np.uint8]:
    """Return the opcode ids of instructions: (instructions,) uint8, 0 for an opcode that is not in `OPCODES`."""
    return np.array([OPCODES.get(instruction.opcode, 0) for instruction in instructions], dtype=np.uint8)


def with_field(instructions: Sequence[HloInstructionProto], field: str) -> tuple[Int64, list[Any]]:
    """Return the positions, (instructions with it,), of the instructions with a message field, and the messages."""
    rows = [row for row, node in enumerate(instructions) if node.HasField(field)]
    return np.array(rows, dtype=np.int64), [getattr(instructions[row], field) for row in rows]


def put_lists(features: NDArray[np.number], columns: Columns, rows: Int64, lists: Sequence[Collection[int]]) -> None:
    """Write lists of integers into an attribute's columns; sums and products wrap at 64 bits, and are cast last."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    values = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(values)) - np.repeat(starts, lengths)
    kept = place < columns.width
    features[np.repeat(rows, lengths)[kept], columns.start + place[kept]] = values[kept]
    filled = lengths > 0  # reduceat has no empty pieces
    if columns.totals and filled.any():
        features[rows[filled], columns.stop - 2] = np.add.reduceat(values, starts[filled])
        features[rows[filled], columns.stop - 1] = np.multiply.reduceat(values, starts[filled])


def node_features(instructions: Sequence[HloInstructionProto], is_root: NDArray[np.bool_]) -> Float32:
    """Compute the official features of nodes, (nodes, 140) float32, as in `COLUMNS`; totals include values left out."""
    count = len(instructions)
    features = np.zeros((count, NODE_FEATURES), dtype=np.float32)
    features[:, [columns.stop - 1 for columns in COLUMNS.values() if columns.totals]] = 1  # product of an empty list
    features[:, COLUMNS["is_root"].start] = is_root
    types = np.array([instruction.shape.element_type for instruction in instructions])
    features[:, ELEMENT_TYPE.start : ELEMENT_TYPE.stop] = types[:, None] == _TYPE_NUMBERS
    messages: dict[str, tuple[Int64, Sequence[Any]]] = {"": (np.arange(count), instructions)}
    for columns in COLUMNS.values():
        if columns.values is not None:
            if columns.message not in messages:
                messages[columns.message] = with_field(instructions, columns.message)
            rows, parts = messages[columns.message]
            put_lists(features, columns, rows, [columns.values(part) for part in parts])
    return features
