"""Flow of values through the computations of a module, and demands on the values of its parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.program import flatten

_COPIES = ("optimization-barrier", "copy", "domain")
_FLOWS = (*_COPIES, "call", "fusion", "while", "conditional", "tuple", "get-tuple-element", "parameter")
_ANNOTATIONS = ("Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement", "LayoutConstraint")
_TUPLE = 13  # the xla.PrimitiveType


class Value(NamedTuple):
    """An array: the output of a node or, with a path, an element of its tuple."""

    node: int
    path: tuple[int, ...] = ()


def leaves(shape: ShapeProto, value: Value = Value(0)) -> Iterator[tuple[Value, ShapeProto]]:  # noqa: B008 (immutable)
    """Yield the arrays of a value, which may be a tuple, in the order in which XLA flattens it."""
    if shape.element_type != _TUPLE:
        yield value, shape
        return
    for index, element in enumerate(shape.tuple_shapes):
        yield from leaves(element, Value(value.node, (*value.path, index)))


class Dataflow:
    """Instructions of a module, which are referred to and not copied, and the values that are copies of each other.

    Of `nodes`, operands are before their users and called computations before their callers. `sources` are the values
    that a value is a copy of, because of tuples, calls, loops and branches.
    """

    def __init__(self, module: HloModuleProto) -> None:
        program = flatten(module)
        self.nodes: list[HloInstructionProto] = program.instructions
        self.operands = program.operands
        roots: dict[int, int] = {}
        parameters: dict[int, list[int]] = {}
        stored = iter(program.node_of.tolist())
        for computation in module.computations:
            own = {instruction.id: next(stored) for instruction in computation.instructions}
            roots[computation.id] = own[computation.root_id]
            found = [node for node in own.values() if self.nodes[node].opcode == "parameter"]
            parameters[computation.id] = sorted(found, key=lambda node: self.nodes[node].parameter_number)
        self.entry = parameters[module.entry_computation_id]
        self.sources: dict[Value, list[Value]] = defaultdict(list)
        for node, instruction in enumerate(self.nodes):
            annotation = instruction.opcode == "custom-call" and instruction.custom_call_target in _ANNOTATIONS
            if annotation or instruction.opcode in _FLOWS:  # its outputs are copies of other values, or their elements
                called = instruction.called_computation_ids
                self._link(node, [roots[id_] for id_ in called], [parameters[id_] for id_ in called])

    def shape(self, value: Value) -> ShapeProto:
        """Return the shape of a value."""
        shape = self.nodes[value.node].shape
        for index in value.path:
            shape = shape.tuple_shapes[index]
        return shape

    def _link(self, node: int, roots: list[int], parameters: list[list[int]]) -> None:
        """Record the copies that an instruction makes, given the roots and the parameters of what it calls."""
        operands = self.operands[node]
        match self.nodes[node].opcode:
            case "tuple":
                for index, operand in enumerate(operands):
                    self._copied(Value(operand), Value(node, (index,)))
            case "get-tuple-element":
                self._copied(Value(operands[0], (self.nodes[node].tuple_index,)), Value(node))
            case "call" | "fusion":
                for operand, parameter in zip(operands, parameters[0], strict=False):
                    self._copied(Value(operand), Value(parameter))
                self._copied(Value(roots[0]), Value(node))
            case "while":  # the body is before the condition
                for source in (operands[0], roots[0]):
                    for sink in (node, *chain(*parameters)):
                        self._copied(Value(source), Value(sink))
            case "conditional":
                for operand, root, found in zip(operands[1:], roots, parameters, strict=False):
                    self._copied(Value(root), Value(node))
                    for parameter in found:
                        self._copied(Value(operand), Value(parameter))
            case "parameter":
                pass  # linked by what calls its computation
            case _:
                self._copied(Value(operands[0]), Value(node))

    def _copied(self, source: Value, sink: Value) -> None:
        wholes, parts = (leaves(self.shape(value), value) for value in (source, sink))
        for (whole, _), (part, _) in zip(wholes, parts, strict=False):
            self.sources[part].append(whole)


@dataclass(frozen=True)
class Demand:
    """Demand on the elements of an array."""

    bound: int | None = None
    """Smallest size of a dimension that they index; None where they index nothing."""
    positive: bool = False
    """True where a root or a logarithm of them is taken."""

    def both(self, other: Demand) -> Demand:
        """Return the demand that meets both."""
        bounds = [bound for bound in (self.bound, other.bound) if bound is not None]
        return Demand(min(bounds, default=None), self.positive or other.positive)


_FIRST = (
    "convert", "reshape", "bitcast", "broadcast", "transpose", "slice", "reverse", "pad", "reduce", "dynamic-slice",
)  # fmt: skip
_ALL = ("add", "concatenate", "maximum", "minimum")
# Operands whose elements reach the output, or are added to something that does.
_INDEX = {
    **dict.fromkeys((*_FIRST, "gather", "reduce-window", "sort"), slice(1)),
    **dict.fromkeys((*_ALL, "subtract"), slice(None)),
    "select": slice(1, 3), "dynamic-update-slice": slice(2), "clamp": slice(1, 2),
}  # fmt: skip
_POSITIVE = {
    **dict.fromkeys((*_FIRST, "sqrt", "power"), slice(1)),
    **dict.fromkeys((*_ALL, "multiply", "divide"), slice(None)),
    "select": slice(1, 3), "clamp": slice(1, 2),
}  # fmt: skip


def demands(flow: Dataflow) -> dict[Value, Demand]:
    """Return the demands on the parameters of the entry computation, and on the elements of tuples among them.

    Demands go back from the indices of gathers, scatters and dynamic slices, from roots and from logarithms, through
    everything that copies, moves or adds elements.
    """
    found: dict[Value, Demand] = {}
    waiting = [(Value(operand), demand) for node in range(len(flow.nodes)) for operand, demand in _own(flow, node)]
    while waiting:
        value, demand = waiting.pop()
        before = found.get(value, Demand())
        if (after := before.both(demand)) == before:
            continue
        found[value] = after
        waiting += [(source, after) for source in flow.sources.get(value, ())]
        if not value.path:
            opcode, operands = flow.nodes[value.node].opcode, flow.operands[value.node]
            if after.bound is not None:
                waiting += [(Value(operand), Demand(after.bound)) for operand in operands[_INDEX.get(opcode, slice(0))]]
            square = opcode == "multiply" and operands[0] == operands[1]
            if after.positive and not square:
                positive = operands[_POSITIVE.get(opcode, slice(0))]
                waiting += [(Value(operand), Demand(positive=True)) for operand in positive]
    return {value: demand for value, demand in found.items() if value.node in flow.entry}


def _own(flow: Dataflow, node: int) -> Iterator[tuple[int, Demand]]:
    """Yield the operands of a node on which it has a demand by itself."""
    instruction, operands = flow.nodes[node], flow.operands[node]
    sizes = [flow.nodes[operand].shape.dimensions for operand in operands]
    match instruction.opcode:
        case "sqrt" | "rsqrt" | "log" | "power":
            yield operands[0], Demand(positive=True)
        case "gather":
            numbers = instruction.gather_dimension_numbers
            bounds = [sizes[0][dim] - instruction.gather_slice_sizes[dim] + 1 for dim in numbers.start_index_map]
            yield operands[1], Demand(max(1, min(bounds, default=1)))
        case "scatter":
            scattered, indices = instruction.scatter_dimension_numbers, len(operands) // 2
            without = {*scattered.inserted_window_dims, *scattered.input_batching_dims}
            dims = [dim for dim in range(len(sizes[0])) if dim not in without]
            windows = zip(dims, scattered.update_window_dims, strict=False)
            window = {dim: sizes[indices + 1][place] for dim, place in windows}
            bounds = [sizes[0][dim] - window.get(dim, 1) + 1 for dim in scattered.scatter_dims_to_operand_dims]
            yield operands[indices], Demand(max(1, min(bounds, default=1)))
        case "dynamic-slice" | "dynamic-update-slice" as opcode:
            update = opcode == "dynamic-update-slice"
            part = sizes[1] if update else instruction.dynamic_slice_sizes
            for start, size, length in zip(operands[1 + update :], sizes[0], part, strict=False):
                yield start, Demand(max(1, size - length + 1))
