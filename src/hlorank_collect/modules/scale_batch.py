"""Modules with another batch: every shape follows, and nothing is traced again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import MAX_NODES
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, LiteralProto
from hlorank_collect.modules.batch_rules import RULES, Mark, Marked, NotScalableError, Op
from hlorank_collect.modules.dataflow import FLOWS, Dataflow, Value, is_annotation
from hlorank_collect.modules.draw_inputs import leaves
from hlorank_collect.program import SkippedError

_log = logging.getLogger(__name__)
Place = tuple[Value, int]
"""A dimension of an array."""

# Field of a literal and type of its elements, by xla.PrimitiveType; numbers that are only moved have any type.
_LITERALS = {
    1: ("preds", np.bool_), 2: ("s8s", np.int8), 4: ("s32s", np.int32), 5: ("s64s", np.int64), 6: ("u8s", np.uint8),
    8: ("u32s", np.uint32), 9: ("u64s", np.uint64), 10: ("f16s", np.uint16), 11: ("f32s", np.float32),
    12: ("f64s", np.float64), 16: ("bf16s", np.uint16),
}  # fmt: skip


class _Batch:
    """Dimensions that change together with dimension 0 of one parameter.

    Attributes:
        size: of the batch.
        marks: the dimensions.
        refusal: the first instruction that has no other batch, and the reason.
    """

    def __init__(self, flow: Dataflow, parameter: Value) -> None:
        self._flow = flow
        self.size = flow.shape(parameter).dimensions[0]
        self.marks: dict[Place, Mark] = {}
        self.refusal: tuple[HloInstructionProto, str] | None = None
        self._waiting: list[Place] = []
        self._mark(parameter, 0, Mark())
        while self._waiting:
            self._spread(*self._waiting.pop())

    def _mark(self, value: Value, dim: int, mark: Mark) -> None:
        if (value, dim) not in self.marks:
            self.marks[value, dim] = mark
            self._waiting.append((value, dim))

    def _spread(self, value: Value, dim: int) -> None:
        flow, mark = self._flow, self.marks[value, dim]
        for other in (*flow.sources(value), *flow.sinks(value)):
            self._mark(other, dim, mark)
        if len(value.path) <= 1:
            self._apply(value.node, -1 - (value.path[0] if value.path else 0), dim, mark)
        if not value.path:
            for user, position in flow.users[value.node]:
                self._apply(user, position, dim, mark)

    def _apply(self, node: int, position: int, dim: int, mark: Mark) -> None:
        one, operands = self._flow.nodes[node], self._flow.operands[node]
        if one.opcode in FLOWS or is_annotation(one):
            return
        op = Op(one, [self._flow.nodes[operand].shape for operand in operands], self.size)
        try:
            if one.opcode not in RULES:
                raise NotScalableError("it is not known how its output depends on the batch")
            for other, place, found in RULES[one.opcode](op, Marked(position, dim, mark)):
                path = () if not one.shape.tuple_shapes else (-1 - other,)
                self._mark(Value(operands[other]) if other >= 0 else Value(node, path), place, found)
        except NotScalableError as error:
            self.refusal = self.refusal or (one, str(error))

    def of_parameters(self) -> Iterator[tuple[Place, Mark]]:
        """Yield the dimensions of the module's parameters."""
        entry = {*self._flow.entry}
        yield from ((place, mark) for place, mark in self.marks.items() if place[0].node in entry)


def _find(flow: Dataflow) -> _Batch:
    """Return the batch: it is dimension 0 of all parameters that have it, and of all these it is in the most shapes.

    Raises:
        SkippedError: there is none, or it cannot be another one.
    """
    seen: set[Place] = set()
    found: list[_Batch] = []
    for node in flow.entry:
        for value, shape in leaves(flow.nodes[node].shape, Value(node)):
            if shape.dimensions and shape.dimensions[0] > 1 and (value, 0) not in seen:
                batch = _Batch(flow, value)
                parameters = [*batch.of_parameters()]
                seen |= {place for place, _ in parameters}
                # Dimensions of weights are in other places, too.
                if all(dim == 0 and mark == Mark() for (_, dim), mark in parameters):
                    found.append(batch)
    if not found:
        raise SkippedError("no batch is found to scale: dimension 0 of its parameters is also one of weights")
    batch = max(found, key=lambda one: len(one.marks))
    if batch.refusal is not None:
        one, reason = batch.refusal
        raise SkippedError(
            f"instruction {one.name} ({one.opcode}): the batch of {batch.size} cannot be scaled: {reason}"
        )
    return batch


def _calls_apart(module: HloModuleProto) -> None:
    """Copy computations that are called several times: the batch may be elsewhere in each call.

    Raises:
        SkippedError: the module would have too many instructions.
    """
    originals = {one.id: one for one in module.computations}
    entry = originals[module.entry_computation_id]
    next_id = max(originals) + 1
    used: set[int] = set()
    apart: list[HloComputationProto] = []
    size = 0

    def visit(computation: HloComputationProto) -> None:
        nonlocal next_id, size
        size += len(computation.instructions)
        if size > MAX_NODES:
            raise SkippedError(f"its calls have more than {MAX_NODES:,} instructions; its batch cannot be scaled")
        for one in computation.instructions:
            for position, called in enumerate(one.called_computation_ids):
                copy = HloComputationProto()
                copy.CopyFrom(originals[called])
                if called in used:
                    copy.id, next_id = next_id, next_id + 1
                    copy.name = f"{copy.name}.copy{copy.id}"
                    for inner in copy.instructions:
                        inner.name = f"{inner.name}.copy{copy.id}"
                    one.called_computation_ids[position] = copy.id
                used.add(called)
                visit(copy)
        apart.append(computation)

    root = HloComputationProto()
    root.CopyFrom(entry)
    visit(root)
    del module.computations[:]
    module.computations.extend(apart)


def _scale_literal(one: HloInstructionProto, dim: int, mark: Mark, batch: int, size: int) -> None:
    """Repeat or leave out elements of a constant."""
    literal = one.literal
    shape = literal.shape
    layout = list(shape.layout.minor_to_major)
    if shape.element_type not in _LITERALS or layout != sorted(layout, reverse=True):
        raise SkippedError(f"instruction {one.name}: a constant of this type or layout has no other batch")
    field, dtype = _LITERALS[shape.element_type]
    stored = getattr(literal, field)
    values: NDArray[Any] = np.frombuffer(stored, dtype) if isinstance(stored, bytes) else np.array(stored, dtype)
    sizes = list(shape.dimensions)
    parts = values.reshape(*sizes[:dim], mark.outer, batch, mark.inner, *sizes[dim + 1 :])
    scaled = parts.take(np.arange(size) % batch, axis=dim + 1).ravel()
    _set_values(literal, field, scaled.tobytes() if isinstance(stored, bytes) else scaled.tolist())
    shape.dimensions[dim] = mark.outer * size * mark.inner


def _set_values(literal: LiteralProto, field: str, values: bytes | Iterable[float]) -> None:
    if isinstance(values, bytes):
        setattr(literal, field, values)
    else:
        getattr(literal, field)[:] = values


def _scale(flow: Dataflow, batch: _Batch, size: int) -> None:
    """Rewrite shapes, and the attributes and constants that depend on them."""
    for (value, dim), mark in batch.marks.items():
        one, new = flow.nodes[value.node], mark.outer * size * mark.inner
        flow.shape(value).dimensions[dim] = new
        if one.opcode == "slice":
            part = one.slice_dimensions[dim]
            part.start, part.limit = part.start // batch.size * size, part.limit // batch.size * size
        elif one.opcode == "dynamic-slice":
            one.dynamic_slice_sizes[dim] = new
        elif one.opcode == "constant":
            _scale_literal(one, dim, mark, batch.size, size)
        for user, position in flow.users[value.node] if not value.path else ():
            _scale_gathered(flow.nodes[user], position, dim, new)
    for node, one in enumerate(flow.nodes):
        for operand, shape in zip(flow.operands[node], one.operand_shapes_with_layout, strict=False):
            shape.dimensions[:] = flow.nodes[operand].shape.dimensions


def _scale_gathered(one: HloInstructionProto, position: int, dim: int, new: int) -> None:
    """Rewrite the size of a window of a gather, which is the whole dimension where it is part of the batch."""
    numbers = one.gather_dimension_numbers
    alone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if one.opcode == "gather" and position == 0 and dim not in alone:
        one.gather_slice_sizes[dim] = new


def _set_program_shapes(module: HloModuleProto) -> None:
    for computation in module.computations:
        parameters = [one for one in computation.instructions if one.opcode == "parameter"]
        shapes = [one.shape for one in sorted(parameters, key=lambda one: one.parameter_number)]
        root = next(one for one in computation.instructions if one.id == computation.root_id)
        programs = [computation.program_shape]
        if computation.id == module.entry_computation_id:
            programs.append(module.host_program_shape)
        for program in programs:
            del program.parameters[:]
            program.parameters.extend(shapes)
            program.result.CopyFrom(root.shape)


def scale_batch(module: HloModuleProto, size: int) -> None:
    """Change the batch of a module; values of constants, such as 1 / batch, stay as they are.

    The batch is dimension 0 of parameters, followed through all instructions. Where every shape follows, shapes and the
    attributes that depend on them are rewritten; constants that have a batch are cut or repeated.

    Args:
        module: a module before any pass; it is changed.
        size: of the new batch.

    Raises:
        SkippedError: no batch is found, or an instruction does not follow; the message names it and the reason.
    """
    _calls_apart(module)
    flow = Dataflow(module)
    batch = _find(flow)
    _scale(flow, batch, size)
    _set_program_shapes(module)
    _log.info("batch %d in place of %d, in %d shapes", size, batch.size, len(batch.marks))
