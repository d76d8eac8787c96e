"""Dots, convolutions and reductions as contractions: values combined over dimensions that the result does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlorank.hlo.hlo_pb2 import HloInstructionProto, WindowDimension
from hlorank_collect.tiles.affine_index import Index, within
from hlorank_collect.tiles.elements import Elements, Indices
from hlorank_collect.tiles.kernel import Body, UnsupportedKernelError

Term = tuple[list[str], Callable[[], str]]
"""C conditions under which there is a value, and the function that writes it."""
COMBINATIONS = {"add": "+", "multiply": "*", "maximum": "max", "minimum": "min", "and": "&", "or": "|"}
"""Operations that combine values -> their names in `#pragma omp simd reduction`."""


@dataclass(frozen=True)
class Contraction:
    """Combination of values into one element of the result.

    Attributes:
        reduced: sizes of the reduced dimensions: the contracting ones of a dot; the window and the input features (of
            a group) of a convolution; the dimensions or the window of a reduction.
        combine: opcode that combines two values.
        init: instruction of the initial value; None is 0.
        term: returns the value at an output index and a reduction index.
    """

    reduced: tuple[int, ...]
    combine: str
    init: HloInstructionProto | None
    term: Callable[[Elements, Indices, Indices], Term]


def contraction(body: Body, one: HloInstructionProto) -> Contraction:
    """Return the contraction of a dot, convolution, reduction or windowed reduction.

    Raises:
        UnsupportedKernelError: a convolution has batch groups, or a reduction several arrays or operations.
    """
    makers = {"dot": _dot, "convolution": _convolution, "reduce": _reduce, "reduce-window": _reduce_window}
    return makers[one.opcode](body, one)


def _dot(body: Body, one: HloInstructionProto) -> Contraction:
    lhs, rhs = body.operands(one)
    numbers = one.dot_dimension_numbers
    sides = (
        (lhs, list(numbers.lhs_batch_dimensions), list(numbers.lhs_contracting_dimensions)),
        (rhs, list(numbers.rhs_batch_dimensions), list(numbers.rhs_contracting_dimensions)),
    )

    def term(elements: Elements, output: Indices, reduced: Indices) -> Term:
        free = iter(output[len(numbers.lhs_batch_dimensions) :])  # of the left side, then of the right side
        operands = []
        for operand, batch, contracted in sides:
            index = [
                output[batch.index(dim)] if dim in batch
                else reduced[contracted.index(dim)] if dim in contracted
                else next(free)
                for dim in range(len(operand.shape.dimensions))
            ]  # fmt: skip
            operands.append((operand, tuple(index)))
        return [], lambda: " * ".join(elements.value(operand, index) for operand, index in operands)

    sizes = tuple(lhs.shape.dimensions[dim] for dim in numbers.lhs_contracting_dimensions)
    return Contraction(sizes, "add", None, term)


def _window(elements: Elements, part: Index, place: Index, one: WindowDimension, size: int) -> tuple[list[str], Index]:
    """Return the conditions under which a window position is on an element, and the index of that element.

    Args:
        elements: writes the index where it is not affine.
        part: output index.
        place: position in the window.
        one: the window.
        size: size of the dimension over which the window moves.
    """
    if one.window_reversal:
        place = place * -1 + (one.size - 1)
    step = one.base_dilation
    index = part * one.stride + place * one.window_dilation + -one.padding_low
    conditions = within(index, (size - 1) * step + 1, elements.sizes)
    if step == 1:
        return conditions, index
    return [*conditions, f"({index}) % {step} == 0"], elements.divided(index, step)[0]


def _convolution(body: Body, one: HloInstructionProto) -> Contraction:
    if one.batch_group_count > 1:
        raise UnsupportedKernelError("batch groups of a convolution")
    image, kernel = body.operands(one)
    numbers, windows = one.convolution_dimension_numbers, one.window.dimensions
    depth = kernel.shape.dimensions[numbers.kernel_input_feature_dimension]
    width = kernel.shape.dimensions[numbers.kernel_output_feature_dimension] // one.feature_group_count

    def term(elements: Elements, output: Indices, reduced: Indices) -> Term:
        *places, feature = reduced
        image_index, kernel_index = [Index()] * len(output), [Index()] * len(output)
        conditions: list[str] = []
        for dim, (window, place) in enumerate(zip(windows, places, strict=True)):
            spatial = numbers.input_spatial_dimensions[dim]
            part = output[numbers.output_spatial_dimensions[dim]]
            needed, image_index[spatial] = _window(elements, part, place, window, image.shape.dimensions[spatial])
            conditions += needed
            kernel_index[numbers.kernel_spatial_dimensions[dim]] = place
        made = output[numbers.output_feature_dimension]
        group = elements.divided(made, width)[0]
        image_index[numbers.input_batch_dimension] = output[numbers.output_batch_dimension]
        image_index[numbers.input_feature_dimension] = group * depth + feature
        kernel_index[numbers.kernel_input_feature_dimension] = feature
        kernel_index[numbers.kernel_output_feature_dimension] = made
        operands = ((image, tuple(image_index)), (kernel, tuple(kernel_index)))
        return conditions, lambda: " * ".join(elements.value(operand, index) for operand, index in operands)

    return Contraction((*(window.size for window in windows), depth), "add", None, term)


def _combination(body: Body, one: HloInstructionProto) -> str:
    """Return the opcode of a reduction's computation."""
    if len(one.operand_ids) != 2:
        raise UnsupportedKernelError("reduction of several arrays")
    region = body.regions[one.called_computation_ids[0]]
    (root,) = (inner for inner in region.instructions if inner.id == region.root_id)
    if len(region.instructions) != 3 or root.opcode not in COMBINATIONS:
        raise UnsupportedKernelError("reduction by more than one operation")
    return root.opcode


def _reduce(body: Body, one: HloInstructionProto) -> Contraction:
    combine = _combination(body, one)
    operand, init = body.operands(one)
    dims = list(one.dimensions)

    def term(elements: Elements, output: Indices, reduced: Indices) -> Term:
        kept = iter(output)
        rank = len(operand.shape.dimensions)
        index = tuple(reduced[dims.index(dim)] if dim in dims else next(kept) for dim in range(rank))
        return [], lambda: elements.value(operand, index)

    return Contraction(tuple(operand.shape.dimensions[dim] for dim in dims), combine, init, term)


def _reduce_window(body: Body, one: HloInstructionProto) -> Contraction:
    combine = _combination(body, one)
    operand, init = body.operands(one)
    windows = one.window.dimensions

    def term(elements: Elements, output: Indices, reduced: Indices) -> Term:
        parts = zip(output, reduced, windows, operand.shape.dimensions, strict=True)
        found = [_window(elements, part, place, window, size) for part, place, window, size in parts]
        conditions = [text for needed, _ in found for text in needed]
        return conditions, lambda: elements.value(operand, tuple(index for _, index in found))

    return Contraction(tuple(window.size for window in windows), combine, init, term)
