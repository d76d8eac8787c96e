"""Single elements of HLO instructions as C statements.

Each handler computes one element of an instruction from elements of its operands, by the public operation semantics of
XLA (https://openxla.org/xla/operation_semantics).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hlorank.hlo.hlo_pb2 import HloInstructionProto
from hlorank_collect.tiles.affine_index import Index, linear, within
from hlorank_collect.tiles.c_operations import c_type, literal_values, template
from hlorank_collect.tiles.kernel import Body, UnsupportedKernelError, dtype_of

Indices = tuple[Index, ...]
Branch = tuple[Sequence[str], Callable[[], str]]
"""C conditions that must all hold, and the function that then writes the value."""

_COMPARISONS = {"EQ": "==", "NE": "!=", "GE": ">=", "GT": ">", "LE": "<=", "LT": "<"}


class Elements:
    """Writer of the statements that compute elements, each element once in a scope.

    Args:
        body: the kernel.
        sizes: index variable -> number of its values, which start at 0.

    Attributes:
        lines: the written statements.
        loads: offsets of the reads from parameters.
        sizes: index variable -> number of its values.
        given: C expressions of instructions that are computed elsewhere, by id.
        places: indices at which the instructions of `given` were read, by id.
        sources: index variable -> loop variables from which it was computed.
    """

    def __init__(self, body: Body, sizes: dict[str, int]) -> None:
        self.lines: list[str] = []
        self.loads: list[Index] = []
        self.sizes = sizes
        self.given: dict[int, str] = {}
        self.places: dict[int, Indices] = {}
        self.sources: dict[str, frozenset[str]] = {}
        self._body = body
        self._count = 0
        self._divisions: list[tuple[Index, int, str, str]] = []  # index, divisor, quotient, remainder
        self._scopes: list[dict[tuple[int, Indices], str]] = [{}]
        self._places = {one.id: number for number, one in enumerate(body.parameters)}

    def value(self, instruction: HloInstructionProto, index: Indices) -> str:
        """Write the statements of an element, and return its C expression.

        Raises:
            UnsupportedKernelError: an instruction is not supported.
        """
        if instruction.id in self.given:
            if self.places.setdefault(instruction.id, index) != index:
                raise UnsupportedKernelError("contraction read at several places")
            return self.given[instruction.id]
        key = (instruction.id, index)
        for scope in self._scopes:
            if key in scope:
                return scope[key]
        handler = getattr(self, f"_{instruction.opcode.replace('-', '_')}", self._elementwise)
        text = handler(instruction, index)
        self._scopes[-1][key] = text
        return str(text)

    def _operand(self, instruction: HloInstructionProto, number: int, index: Indices) -> str:
        return self.value(self._body.operands(instruction)[number], index)

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _define(self, kind: str, text: str) -> str:
        name = self._fresh()
        self.lines.append(f"const {kind} {name} = {text};")
        return name

    def _variable(self, text: str, size: int, *sources: Index) -> Index:
        """Define an index variable that is computed from others."""
        name = self._define("long", text)
        self.sizes[name] = size
        self.sources[name] = self.depends(*sources)
        return Index.variable(name)

    def depends(self, *indices: Index) -> frozenset[str]:
        """Return the loop variables on which indices depend."""
        names = {name for index in indices for name in index.names}
        return frozenset(source for name in names for source in self.sources.get(name, {name}))

    def divided(self, index: Index, divisor: int) -> tuple[Index, Index]:
        """Return quotient and remainder of an index that is not negative."""
        if affine := index.split(divisor, self.sizes):
            return affine
        quotient = self._variable(f"({index}) / {divisor}", index.bounds(self.sizes)[1] // divisor + 1, index)
        remainder = self._variable(f"{index} - {divisor} * {quotient}", divisor, index)
        self._divisions.append((index, divisor, str(quotient), str(remainder)))
        return quotient, remainder

    def _place(self, index: Indices, dims: Sequence[int], minor_to_major: Sequence[int]) -> Index:
        """Return the offset of an element; a quotient and its remainder are merged where both occur."""
        place = linear(index, dims, minor_to_major)
        for divided, divisor, quotient, remainder in reversed(self._divisions):
            factor = place.coefficient(remainder)
            if factor and place.coefficient(quotient) == factor * divisor:
                parts = Index.variable(quotient) * divisor + Index.variable(remainder)
                place = place + (divided + parts * -1) * factor
        return place

    def _choose(self, kind: str, branches: Sequence[Branch]) -> str:
        """Return the value of the first branch whose conditions hold."""
        name = self._fresh()
        self.lines.append(f"{kind} {name};")
        for number, (conditions, write) in enumerate(branches):
            otherwise = "else " * (number > 0)
            self.lines.append(f"{otherwise}if ({' && '.join(conditions)}) {{" if conditions else f"{otherwise}{{")
            self._scopes.append({})
            self.lines.append(f"{name} = {write()}; }}")
            self._scopes.pop()
            if not conditions:
                break
        return name

    def _elementwise(self, one: HloInstructionProto, index: Indices) -> str:
        text = template(one.opcode, one.shape)
        if text is None:
            raise UnsupportedKernelError(f"{one.opcode} of {dtype_of(one.shape).name}")
        operands = self._body.operands(one)
        # The bounds of clamp and the predicate of select may be scalars.
        values = [self.value(operand, index if operand.shape.dimensions else ()) for operand in operands]
        return self._define(c_type(one.shape), text.format(*values))

    def _compare(self, one: HloInstructionProto, index: Indices) -> str:
        values = [self._operand(one, number, index) for number in range(2)]
        return self._define(c_type(one.shape), f" {_COMPARISONS[one.comparison_direction]} ".join(values))

    def _convert(self, one: HloInstructionProto, index: Indices) -> str:
        value = self._operand(one, 0, index)
        is_bool = dtype_of(one.shape) == np.bool_
        return self._define(c_type(one.shape), f"{value} != 0" if is_bool else f"({c_type(one.shape)}){value}")

    def _parameter(self, one: HloInstructionProto, index: Indices) -> str:
        place = self._place(index, one.shape.dimensions, one.shape.layout.minor_to_major)
        self.loads.append(place)
        return self._define(c_type(one.shape), f"p{self._places[one.id]}[{place}]")

    def _constant(self, one: HloInstructionProto, index: Indices) -> str:
        if not one.shape.dimensions:
            (text,) = literal_values(one.literal)
            return text
        shape = one.literal.shape
        place = self._place(index, shape.dimensions, shape.layout.minor_to_major)
        return self._define(c_type(shape), f"c{one.id}[{place}]")

    def _iota(self, one: HloInstructionProto, index: Indices) -> str:
        return self._define(c_type(one.shape), f"({c_type(one.shape)})({index[one.dimensions[0]]})")

    def _broadcast(self, one: HloInstructionProto, index: Indices) -> str:
        return self._operand(one, 0, tuple(index[dim] for dim in one.dimensions))

    def _transpose(self, one: HloInstructionProto, index: Indices) -> str:
        return self._operand(one, 0, tuple(index[list(one.dimensions).index(dim)] for dim in range(len(index))))

    def _reverse(self, one: HloInstructionProto, index: Indices) -> str:
        dims = one.shape.dimensions
        reversed_index = (part * -1 + (dims[d] - 1) if d in one.dimensions else part for d, part in enumerate(index))
        return self._operand(one, 0, tuple(reversed_index))

    def _reshape(self, one: HloInstructionProto, index: Indices) -> str:
        (operand,) = self._body.operands(one)
        orders = (range(len(shape.dimensions))[::-1] for shape in (one.shape, operand.shape))
        return self._rearranged(one, operand, index, *orders)

    def _bitcast(self, one: HloInstructionProto, index: Indices) -> str:
        (operand,) = self._body.operands(one)
        orders = (shape.layout.minor_to_major for shape in (one.shape, operand.shape))
        return self._rearranged(one, operand, index, *orders)

    def _rearranged(
        self,
        one: HloInstructionProto,
        operand: HloInstructionProto,
        index: Indices,
        order: Sequence[int],
        operand_order: Sequence[int],
    ) -> str:
        """Return the element at the same offset, for minor-to-major orders of both shapes."""
        if one.shape.element_type != operand.shape.element_type:
            raise UnsupportedKernelError("bitcast to another type")
        place = self._place(index, one.shape.dimensions, order)
        parts = [Index()] * len(operand_order)
        sizes = operand.shape.dimensions
        left = [dim for dim in operand_order if sizes[dim] > 1]
        for dim in left[:-1]:
            place, parts[dim] = self.divided(place, sizes[dim])
        if left:
            parts[left[-1]] = place
        return self.value(operand, tuple(parts))

    def _slice(self, one: HloInstructionProto, index: Indices) -> str:
        parts = zip(index, one.slice_dimensions, strict=True)
        return self._operand(one, 0, tuple(part * cut.stride + cut.start for part, cut in parts))

    def _pad(self, one: HloInstructionProto, index: Indices) -> str:
        operand, _ = self._body.operands(one)
        conditions: list[str] = []
        places = []
        for part, edges, size in zip(index, one.padding_config.dimensions, operand.shape.dimensions, strict=True):
            step = edges.interior_padding + 1
            place = part + -edges.edge_padding_low
            conditions += within(place, (size - 1) * step + 1, self.sizes)
            conditions += [f"({place}) % {step} == 0"] * (step > 1)
            places.append((place, step))

        def inside() -> str:
            exact = tuple(self.divided(place, step)[0] if step > 1 else place for place, step in places)
            return self.value(operand, exact)

        return self._choose(c_type(one.shape), [(conditions, inside), ((), lambda: self._operand(one, 1, ()))])

    def _concatenate(self, one: HloInstructionProto, index: Indices) -> str:
        (dim,) = one.dimensions
        branches: list[Branch] = []
        start = 0
        for operand in self._body.operands(one):
            size = operand.shape.dimensions[dim]
            moved = (*index[:dim], index[dim] + -start, *index[dim + 1 :])
            start += size
            last = start == one.shape.dimensions[dim]
            conditions = [] if last else [f"{index[dim]} < {start}"]
            branches.append((conditions, partial(self.value, operand, moved)))
        return self._choose(c_type(one.shape), branches)

    def _start(self, operand: HloInstructionProto, index: Indices, limit: int) -> Index:
        """Return a start index that is read from data, clamped to 0..limit as in XLA."""
        value = self.value(operand, index)
        text = f"(long){value} < 0 ? 0 : (long){value} > {limit} ? {limit} : (long){value}"
        return self._variable(text, limit + 1, *index)

    def _dynamic_slice(self, one: HloInstructionProto, index: Indices) -> str:
        operand, *starts = self._body.operands(one)
        limits = [dim - size for dim, size in zip(operand.shape.dimensions, one.dynamic_slice_sizes, strict=True)]
        moved = [part + self._start(start, (), limit) for part, start, limit in zip(index, starts, limits, strict=True)]
        return self.value(operand, tuple(moved))

    def _dynamic_update_slice(self, one: HloInstructionProto, index: Indices) -> str:
        operand, update, *starts = self._body.operands(one)
        dims, sizes = operand.shape.dimensions, update.shape.dimensions
        moved = tuple(
            part + self._start(start, (), dim - size) * -1
            for part, start, dim, size in zip(index, starts, dims, sizes, strict=True)
        )
        conditions = [text for part, size in zip(moved, sizes, strict=True) for text in within(part, size, self.sizes)]
        branches = [(conditions, lambda: self.value(update, moved)), ((), lambda: self.value(operand, index))]
        return self._choose(c_type(one.shape), branches)

    def _gather(self, one: HloInstructionProto, index: Indices) -> str:
        table, positions = self._body.operands(one)
        numbers = one.gather_dimension_numbers
        batch = [part for dim, part in enumerate(index) if dim not in numbers.offset_dims]
        offsets = iter(index[dim] for dim in numbers.offset_dims)
        moved = []
        for dim, (rows, size) in enumerate(zip(table.shape.dimensions, one.gather_slice_sizes, strict=True)):
            part = Index() if dim in numbers.collapsed_slice_dims else next(offsets, Index())
            if dim in numbers.start_index_map:
                place = list(batch)
                if numbers.index_vector_dim < len(positions.shape.dimensions):
                    place.insert(numbers.index_vector_dim, Index((), list(numbers.start_index_map).index(dim)))
                part = part + self._start(positions, tuple(place), rows - size)
            moved.append(part)
        return self.value(table, tuple(moved))
