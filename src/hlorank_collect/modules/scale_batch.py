"""Modules with another batch: every shape follows, and nothing is traced again."""

import logging
from collections.abc import Iterator
from itertools import count

from hlorank.data.graph import MAX_NODES
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloModuleProto
from hlorank_collect.modules.batch_rules import NotScalableError, Op, tied
from hlorank_collect.modules.dataflow import Dataflow, Value, is_flow, leaves
from hlorank_collect.program import SkippedError

_log = logging.getLogger(__name__)
Place = tuple[Value, int]
"""A dimension of an array."""


class _Batch:
    """Dimensions that change together with dimension 0 of one parameter.

    Attributes:
        size: size of the batch.
        inner: dimension -> size of what is merged with the batch inside of it; what is merged outside is the rest.
        refused: the first instruction that has no other batch, with the reason; empty if all follow.
    """

    def __init__(self, flow: Dataflow, parameter: Value) -> None:
        self._flow = flow
        self.size = flow.shape(parameter).dimensions[0]
        self.inner: dict[Place, int] = {}
        self.refused = ""
        waiting: list[tuple[Place, int]] = [((parameter, 0), 1)]
        while waiting:
            place, inner = waiting.pop()
            if place not in self.inner:
                self.inner[place] = inner
                waiting += self._tied(*place, inner)

    def _tied(self, value: Value, dim: int, inner: int) -> Iterator[tuple[Place, int]]:
        """Yield the dimensions that change with a dimension, each with its `inner`."""
        flow = self._flow
        for copy in (*flow.sources.get(value, ()), *flow.sinks.get(value, ())):
            yield (copy, dim), inner
        uses = [(value.node, -1 - (value.path or (0,))[0])] if len(value.path) <= 1 else []
        for node, position in uses + (flow.users[value.node] if not value.path else []):
            instruction, operands = flow.nodes[node], flow.operands[node]
            if is_flow(instruction):
                continue
            op = Op(instruction, [flow.nodes[operand].shape for operand in operands], self.size * inner)
            try:
                for (other, place), found in tied(op, (position, dim), inner):
                    path = (-1 - other,) if instruction.shape.tuple_shapes else ()
                    yield (Value(operands[other]) if other >= 0 else Value(node, path), place), found
            except NotScalableError as error:
                name = f"instruction {instruction.name} ({instruction.opcode})"
                self.refused = self.refused or f"{name}: the batch of {self.size} cannot be scaled: {error}"


def _find(flow: Dataflow) -> _Batch:
    """Return the batch: it is dimension 0 of all parameters that have it, and of all these it is in the most shapes."""
    seen, found = set[Place](), list[_Batch]()
    for node in flow.entry:
        for value, shape in leaves(flow.nodes[node].shape, Value(node)):
            if shape.dimensions and shape.dimensions[0] > 1 and (value, 0) not in seen:
                batch = _Batch(flow, value)
                places = [place for place in batch.inner if place[0].node in flow.entry]
                seen.update(places)
                # Dimensions of weights are also elsewhere.
                if all(dim == 0 and flow.shape(other).dimensions[0] == batch.size for other, dim in places):
                    found.append(batch)
    if not found:
        raise SkippedError("no batch is found to scale: dimension 0 of its parameters is also one of weights")
    batch = max(found, key=lambda batch: len(batch.inner))
    if batch.refused:
        raise SkippedError(batch.refused)
    return batch


def _calls_apart(module: HloModuleProto) -> None:
    """Copy computations that are called several times: the batch may be elsewhere in each call."""
    originals = {computation.id: computation for computation in module.computations}
    new_ids, used, apart, size = count(max(originals) + 1), set[int](), list[HloComputationProto](), 0

    def visit(id_: int) -> int:
        """Append a computation after the ones that it calls, as a copy if it is called again; return its id."""
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


def _scale(flow: Dataflow, batch: _Batch, size: int) -> None:
    """Rewrite shapes, and the attributes that depend on them."""
    for value, dim in batch.inner:
        instruction, dimensions = flow.nodes[value.node], flow.shape(value).dimensions
        dimensions[dim] = new = dimensions[dim] // batch.size * size
        match instruction.opcode:
            case "slice":
                part = instruction.slice_dimensions[dim]
                part.start, part.limit = part.start // batch.size * size, part.limit // batch.size * size
            case "dynamic-slice":
                instruction.dynamic_slice_sizes[dim] = new
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
        ordered = sorted(computation.instructions, key=lambda instruction: instruction.parameter_number)
        root = next(instruction for instruction in ordered if instruction.id == computation.root_id)
        is_entry = computation.id == module.entry_computation_id
        for program in (computation.program_shape, *[module.host_program_shape] * is_entry):
            program.ClearField("parameters")
            program.parameters.extend(node.shape for node in ordered if node.opcode == "parameter")
            program.result.CopyFrom(root.shape)


def scale_batch(module: HloModuleProto, size: int) -> None:
    """Change the batch of a module before any pass; values of constants, such as 1 / batch, stay as they are.

    SkippedError is raised where no batch is found, or a shape does not follow; the message names it and the reason.
    """
    _calls_apart(module)
    flow = Dataflow(module)
    batch = _find(flow)
    _scale(flow, batch, size)
    _set_program_shapes(module)
    _log.info("batch %d in place of %d, in %d shapes", size, batch.size, len(batch.inner))
