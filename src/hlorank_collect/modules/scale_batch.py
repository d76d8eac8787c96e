"""Modules with another batch: every shape follows, and nothing is traced again."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import MAX_NODES
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto
from hlorank_collect.modules.batch_rules import NotScalableError, Op, tied
from hlorank_collect.modules.dataflow import Dataflow, Value, is_flow, leaves
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
        size: size of the batch.
        inner: dimension -> size of what is merged with the batch inside of it; what is merged outside is the rest.
        refusal: the first instruction that has no other batch, and the reason.
    """

    def __init__(self, flow: Dataflow, parameter: Value) -> None:
        self._flow = flow
        self.size = flow.shape(parameter).dimensions[0]
        self.inner: dict[Place, int] = {}
        self.refusal: tuple[HloInstructionProto, str] | None = None
        self._waiting: list[tuple[Place, int]] = [((parameter, 0), 1)]
        while self._waiting:
            place, inner = self._waiting.pop()
            if place not in self.inner:
                self.inner[place] = inner
                self._spread(*place, inner)

    def _spread(self, value: Value, dim: int, inner: int) -> None:
        flow = self._flow
        copies = (*flow.sources.get(value, ()), *flow.sinks.get(value, ()))
        self._waiting += [((other, dim), inner) for other in copies]
        if len(value.path) <= 1:
            self._apply(value.node, -1 - (value.path[0] if value.path else 0), dim, inner)
        if not value.path:
            for user, position in flow.users[value.node]:
                self._apply(user, position, dim, inner)

    def _apply(self, node: int, position: int, dim: int, inner: int) -> None:
        instruction, operands = self._flow.nodes[node], self._flow.operands[node]
        if is_flow(instruction):
            return
        op = Op(instruction, [self._flow.nodes[operand].shape for operand in operands], self.size)
        try:
            for (other, place), found in tied(op, (position, dim), inner):
                path = (-1 - other,) if instruction.shape.tuple_shapes else ()
                value = Value(operands[other]) if other >= 0 else Value(node, path)
                self._waiting.append(((value, place), found))
        except NotScalableError as error:
            self.refusal = self.refusal or (instruction, str(error))

    def is_batch(self, parameters: set[Place]) -> bool:
        """Return True if it is dimension 0 of all these parameters, alone: dimensions of weights are elsewhere, too."""
        return all(dim == 0 and self._flow.shape(value).dimensions[0] == self.size for value, dim in parameters)


def _find(flow: Dataflow) -> _Batch:
    """Return the batch: it is dimension 0 of all parameters that have it, and of all these it is in the most shapes."""
    entry, seen, found = {*flow.entry}, set[Place](), list[_Batch]()
    for node in flow.entry:
        for value, shape in leaves(flow.nodes[node].shape, Value(node)):
            if shape.dimensions and shape.dimensions[0] > 1 and (value, 0) not in seen:
                batch = _Batch(flow, value)
                parameters = {place for place in batch.inner if place[0].node in entry}
                seen |= parameters
                if batch.is_batch(parameters):
                    found.append(batch)
    if not found:
        raise SkippedError("no batch is found to scale: dimension 0 of its parameters is also one of weights")
    batch = max(found, key=lambda batch: len(batch.inner))
    if batch.refusal is not None:
        instruction, reason = batch.refusal
        place = f"instruction {instruction.name} ({instruction.opcode})"
        raise SkippedError(f"{place}: the batch of {batch.size} cannot be scaled: {reason}")
    return batch


def _calls_apart(module: HloModuleProto) -> None:
    """Copy computations that are called several times: the batch may be elsewhere in each call."""
    originals = {computation.id: computation for computation in module.computations}
    new_ids, used, apart, size = count(max(originals) + 1), set[int](), list[HloComputationProto](), 0

    def visit(id_: int) -> int:
        """Append a computation after those that it calls, as a copy if it is called again; return its id."""
        nonlocal size
        computation = HloComputationProto()
        computation.CopyFrom(originals[id_])
        size += len(computation.instructions)
        if size > MAX_NODES:
            raise SkippedError(f"its calls have more than {MAX_NODES:,} instructions; its batch cannot be scaled")
        if id_ in used:
            computation.id = next(new_ids)
            computation.name = f"{computation.name}.copy{computation.id}"
            for instruction in computation.instructions:
                instruction.name = f"{instruction.name}.copy{computation.id}"
        used.add(id_)
        for instruction in computation.instructions:
            instruction.called_computation_ids[:] = [visit(called) for called in instruction.called_computation_ids]
        apart.append(computation)
        return computation.id

    visit(module.entry_computation_id)
    del module.computations[:]
    module.computations.extend(apart)


def _scale_literal(constant: HloInstructionProto, dim: int, inner: int, batch: int, size: int) -> None:
    """Repeat or leave out elements of a constant."""
    literal, shape = constant.literal, constant.literal.shape
    layout = [*shape.layout.minor_to_major]
    if shape.element_type not in _LITERALS or layout != sorted(layout, reverse=True):
        raise SkippedError(f"instruction {constant.name}: a constant of this type or layout has no other batch")
    field, dtype = _LITERALS[shape.element_type]
    stored = getattr(literal, field)
    values: NDArray[Any] = np.frombuffer(stored, dtype) if isinstance(stored, bytes) else np.array(stored, dtype)
    sizes = [*shape.dimensions]
    parts = values.reshape(*sizes[:dim], -1, batch, inner, *sizes[dim + 1 :])
    scaled = parts.take(np.arange(size) % batch, axis=dim + 1).ravel()
    if isinstance(stored, bytes):
        setattr(literal, field, scaled.tobytes())
    else:
        stored[:] = scaled.tolist()
    shape.dimensions[dim] = sizes[dim] // batch * size


def _scale(flow: Dataflow, batch: _Batch, size: int) -> None:
    """Rewrite shapes, and the attributes and constants that depend on them."""
    for (value, dim), inner in batch.inner.items():
        instruction, dimensions = flow.nodes[value.node], flow.shape(value).dimensions
        dimensions[dim] = new = dimensions[dim] // batch.size * size
        if instruction.opcode == "slice":
            part = instruction.slice_dimensions[dim]
            part.start, part.limit = part.start // batch.size * size, part.limit // batch.size * size
        elif instruction.opcode == "dynamic-slice":
            instruction.dynamic_slice_sizes[dim] = new
        elif instruction.opcode == "constant":
            _scale_literal(instruction, dim, inner, batch.size, size)
        for user, position in flow.users[value.node] if not value.path else ():
            gather, numbers = flow.nodes[user], flow.nodes[user].gather_dimension_numbers
            alone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
            if gather.opcode == "gather" and position == 0 and dim not in alone:
                gather.gather_slice_sizes[dim] = new  # the window is the whole dimension
    for node, instruction in enumerate(flow.nodes):
        for operand, shape in zip(flow.operands[node], instruction.operand_shapes_with_layout, strict=False):
            shape.dimensions[:] = flow.nodes[operand].shape.dimensions


def _set_program_shapes(module: HloModuleProto) -> None:
    for computation in module.computations:
        parameters = [instruction for instruction in computation.instructions if instruction.opcode == "parameter"]
        root = next(instruction for instruction in computation.instructions if instruction.id == computation.root_id)
        programs = [computation.program_shape]
        if computation.id == module.entry_computation_id:
            programs.append(module.host_program_shape)
        for program in programs:
            del program.parameters[:]
            program.parameters.extend(one.shape for one in sorted(parameters, key=lambda one: one.parameter_number))
            program.result.CopyFrom(root.shape)


def scale_batch(module: HloModuleProto, size: int) -> None:
    """Change the batch of a module before any pass; values of constants, such as 1 / batch, stay as they are.

    The batch is dimension 0 of parameters, followed through all instructions. Where every shape follows, shapes and the
    attributes that depend on them are rewritten; constants that have a batch are cut or repeated.

    Raises:
        SkippedError: no batch is found, or an instruction does not follow; the message names it and the reason.
    """
    _calls_apart(module)
    flow = Dataflow(module)
    batch = _find(flow)
    _scale(flow, batch, size)
    _set_program_shapes(module)
    _log.info("batch %d in place of %d, in %d shapes", size, batch.size, len(batch.inner))
