"""The opcode ids and the 140 node features of the official files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

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


class Columns(NamedTuple):
    """Columns of one attribute: its first `width` values and, with `totals`, the sum and product of all."""

    name: str
    start: int
    width: int = 1
    totals: bool = False

    @property
    def stop(self) -> int:
        """Column after the last one."""
        return self.start + self.width + 2 * self.totals


IS_ROOT = Columns("is_root", 0)
UNUSED = Columns("unused", 1)
ELEMENT_TYPE = Columns("element_type", 2, 19)
SHAPE = Columns("shape", 21, 6, totals=True)
TUPLE_SIZE = Columns("tuple_size", 29)
PARAMETER_NUMBER = Columns("parameter_number", 30)
DIMENSIONS = Columns("dimensions", 31, 6)
WINDOW = (
    Columns("window_size", 37, 6, totals=True),
    Columns("window_stride", 45, 6, totals=True),
    Columns("window_padding_low", 53, 6, totals=True),
    Columns("window_padding_high", 61, 6, totals=True),
    Columns("window_dilation", 69, 6, totals=True),
    Columns("window_base_dilation", 77, 6, totals=True),
)
WINDOW_REVERSAL = Columns("window_reversal", 85, 6)
WINDOW_REVERSAL_COUNTS = Columns("window_reversal_counts", 91, 2)
CONVOLUTION_INPUT = Columns("convolution_input_batch_and_feature", 93, 2)
CONVOLUTION_INPUT_SPATIAL = Columns("convolution_input_spatial", 95, 4)
CONVOLUTION_KERNEL = Columns("convolution_kernel_input_and_output_feature", 99, 2)
CONVOLUTION_KERNEL_SPATIAL = Columns("convolution_kernel_spatial", 101, 4)
CONVOLUTION_OUTPUT = Columns("convolution_output_batch_and_feature", 105, 2)
FEATURE_GROUPS = Columns("feature_group_count", 107)
BATCH_GROUPS = Columns("batch_group_count", 108)
SLICE = (
    Columns("slice_start", 109, 2, totals=True),
    Columns("slice_stride", 113, 2, totals=True),
    Columns("slice_limit", 117, 2, totals=True),
)
DYNAMIC_SLICE_SIZES = Columns("dynamic_slice_sizes", 121, 2, totals=True)
PADDING = (
    Columns("padding_low", 125, 2, totals=True),
    Columns("padding_high", 129, 2, totals=True),
)
IS_STABLE = Columns("is_stable", 133)
MINOR_TO_MAJOR = Columns("minor_to_major", 134, 6)

COLUMNS = (
    IS_ROOT, UNUSED, ELEMENT_TYPE, SHAPE, TUPLE_SIZE, PARAMETER_NUMBER, DIMENSIONS,
    *WINDOW, WINDOW_REVERSAL, WINDOW_REVERSAL_COUNTS,
    CONVOLUTION_INPUT, CONVOLUTION_INPUT_SPATIAL, CONVOLUTION_KERNEL, CONVOLUTION_KERNEL_SPATIAL, CONVOLUTION_OUTPUT,
    FEATURE_GROUPS, BATCH_GROUPS, *SLICE, DYNAMIC_SLICE_SIZES, *PADDING, IS_STABLE, MINOR_TO_MAJOR,
)  # fmt: skip
"""All 140 columns, in order."""

# By the number of xla.PrimitiveType.
_ELEMENTS = (
    "invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple", "opaque",
    "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz",
    "s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu",
)  # fmt: skip

# xla.PrimitiveType of each one-hot column: invalid, pred, s8 to s64, u8 to u64, f16 to f64, bf16, c64, c128, tuple,
# opaque, token. Later types have no column.
_TYPE_NUMBERS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17])


def element_type(shape: ShapeProto) -> str:
    """Return the name of the type of a shape's elements, such as `f32`."""
    known = 0 <= shape.element_type < len(_ELEMENTS)
    return _ELEMENTS[shape.element_type] if known else f"type{shape.element_type}"


def has_column(shape: ShapeProto) -> bool:
    """Return whether the features have a column for the type of a shape's elements."""
    return shape.element_type in _TYPE_NUMBERS


def put_lists(features: NDArray[np.number], columns: Columns, rows: Int64, lists: Sequence[Collection[int]]) -> None:
    """Write a list of 64-bit integers for each of `rows` into the columns of an attribute.

    Columns beyond the end of a list keep their values. Sums and products wrap at 64 bits, and are cast last.
    """
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    values = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(values)) - np.repeat(starts, lengths)
    kept = place < columns.width
    features[np.repeat(rows, lengths)[kept], columns.start + place[kept]] = values[kept]
    some = lengths > 0  # reduceat has no empty pieces
    if columns.totals and some.any():
        features[rows[some], columns.stop - 2] = np.add.reduceat(values, starts[some])
        features[rows[some], columns.stop - 1] = np.multiply.reduceat(values, starts[some])


def opcode_ids(instructions: Sequence[HloInstructionProto]) -> NDArray[np.uint8]:
    """Return the opcode ids of instructions: (instructions,) uint8, 0 for an opcode that is not in `OPCODES`."""
    return np.array([OPCODES.get(instruction.opcode, 0) for instruction in instructions], dtype=np.uint8)


def with_field(instructions: Sequence[HloInstructionProto], field: str) -> Int64:
    """Return the positions of the instructions that have a message field: (instructions with it,) int64."""
    return np.array([row for row, node in enumerate(instructions) if node.HasField(field)], dtype=np.int64)


def _put_windows(features: Float32, instructions: Sequence[HloInstructionProto]) -> None:
    rows = with_field(instructions, "window")
    windows = [instructions[row].window.dimensions for row in rows]
    fields = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
    for columns, field in zip(WINDOW, fields, strict=True):
        put_lists(features, columns, rows, [[getattr(dimension, field) for dimension in window] for window in windows])
    reversals = [[dimension.window_reversal for dimension in window] for window in windows]
    put_lists(features, WINDOW_REVERSAL, rows, reversals)
    put_lists(features, WINDOW_REVERSAL_COUNTS, rows, [[sum(flags), len(flags) - sum(flags)] for flags in reversals])


def _put_convolutions(features: Float32, instructions: Sequence[HloInstructionProto]) -> None:
    rows = with_field(instructions, "convolution_dimension_numbers")
    for row in rows:
        numbers = instructions[row].convolution_dimension_numbers
        for columns, values in {
            CONVOLUTION_INPUT: [numbers.input_batch_dimension, numbers.input_feature_dimension],
            CONVOLUTION_INPUT_SPATIAL: numbers.input_spatial_dimensions,
            CONVOLUTION_KERNEL: [numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension],
            CONVOLUTION_KERNEL_SPATIAL: numbers.kernel_spatial_dimensions,
            CONVOLUTION_OUTPUT: [numbers.output_batch_dimension, numbers.output_feature_dimension],
        }.items():
            kept = np.array(values[: columns.width], dtype=np.int64)
            features[row, columns.start : columns.start + len(kept)] = kept


def _put_slices(features: Float32, instructions: Sequence[HloInstructionProto]) -> None:
    rows = np.array([row for row, node in enumerate(instructions) if node.slice_dimensions], dtype=np.int64)
    slices = [instructions[row].slice_dimensions for row in rows]
    for columns, field in zip(SLICE, ("start", "stride", "limit"), strict=True):
        put_lists(features, columns, rows, [[getattr(dimension, field) for dimension in axes] for axes in slices])
    rows = with_field(instructions, "padding_config")
    paddings = [instructions[row].padding_config.dimensions for row in rows]
    for columns, field in zip(PADDING, ("edge_padding_low", "edge_padding_high"), strict=True):
        put_lists(features, columns, rows, [[getattr(dimension, field) for dimension in axes] for axes in paddings])


def node_features(instructions: Sequence[HloInstructionProto], is_root: NDArray[np.bool_]) -> Float32:
    """Compute the official features of nodes.

    Of a shape of more than six dimensions, the first six are kept, and the sum and product of all.

    Args:
        instructions: instructions in node order.
        is_root: (nodes,) bool, true for the root of each computation.

    Returns:
        (nodes, 140) float32, padded with 0; the columns are those of `COLUMNS`.
    """
    count = len(instructions)
    features = np.zeros((count, NODE_FEATURES), dtype=np.float32)
    features[:, [columns.stop - 1 for columns in COLUMNS if columns.totals]] = 1  # the product of an empty list
    features[:, IS_ROOT.start] = is_root
    shapes = [instruction.shape for instruction in instructions]
    types = np.array([shape.element_type for shape in shapes])
    features[:, ELEMENT_TYPE.start : ELEMENT_TYPE.stop] = types[:, None] == _TYPE_NUMBERS
    rows = np.arange(count)
    put_lists(features, SHAPE, rows, [shape.dimensions for shape in shapes])
    put_lists(features, MINOR_TO_MAJOR, rows, [shape.layout.minor_to_major for shape in shapes])
    put_lists(features, DIMENSIONS, rows, [node.dimensions for node in instructions])
    put_lists(features, DYNAMIC_SLICE_SIZES, rows, [node.dynamic_slice_sizes for node in instructions])
    features[:, TUPLE_SIZE.start] = [len(shape.tuple_shapes) for shape in shapes]
    features[:, PARAMETER_NUMBER.start] = [node.parameter_number for node in instructions]
    features[:, FEATURE_GROUPS.start] = [node.feature_group_count for node in instructions]
    features[:, BATCH_GROUPS.start] = [node.batch_group_count for node in instructions]
    features[:, IS_STABLE.start] = [node.is_stable for node in instructions]
    _put_windows(features, instructions)
    _put_convolutions(features, instructions)
    _put_slices(features, instructions)
    return features
