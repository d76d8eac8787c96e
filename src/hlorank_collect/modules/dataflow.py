"""Flow of values through the computations of a module, and demands on the values of its parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.program import flatten

CALLS = ("call", "fusion")
_SAME = ("optimization-barrier", "copy", "domain")
FLOWS = (*CALLS, *_SAME, "while", "conditional", "tuple", "get-tuple-element", "parameter")
"""Opcodes whose outputs are copies of other values, or of their elements."""
ANNOTATIONS = ("Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement", "LayoutConstraint")
"""Targets of custom calls that return their operand."""
TUPLE = 13
"""The xla.PrimitiveType of tuples."""


class Value(NamedTuple):
    """An array: the output of a node or, with a path, an element of its tuple."""

    node: int
    path: tuple[int, ...] = ()


_ANY = Value(0)


def leaves(shape: ShapeProto, value: Value = _ANY) -> Iterator[tuple[Value, ShapeProto]]:
    """Yield the arrays of a value, which may be a tuple, in the order in which XLA flattens it."""
    if shape.element_type != TUPLE:
        yield value, shape
        return
    for index, element in enumerate(shape.tuple_shapes):
        yield from leaves(element, Value(value.node, (*value.path, index)))


def is_flow(instruction: HloInstructionProto) -> bool:
    """Return True if the outputs of an instruction are copies of other values, or of their elements."""
    annotation = instruction.opcode == "custom-call" and instruction.custom_call_target in ANNOTATIONS
    return annotation or instruction.opcode in FLOWS


class Dataflow:
    """Instructions of a module, which are referred to and not copied, and the values that are copies of each other.

    Attributes:
        nodes: all instructions; operands are before their users, called computations before their callers.
        operands: the nodes of the operands of each node.
        users: user and position of the operand, for each use of each node.
        entry: the nodes of the parameters of the entry computation, by number.
        sources: value -> the values that it is a copy of, because of tuples, calls, loops and branches.
        sinks: value -> the values that are a copy of it.

    Raises:
        DataError: the module is broken.
    """

    def __init__(self, module: HloModuleProto) -> None:
        program = flatten(module)
        self.nodes: list[HloInstructionProto] = program.instructions
        self.operands = program.operands
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for node, operands in enumerate(self.operands):
            for position, operand in enumerate(operands):
                self.users[operand].append((node, position))
        parameters: dict[int, list[int]] = {}
        self._roots: dict[int, int] = {}
        self._computation: list[int] = [0] * len(self.nodes)
        start = 0
        for computation in module.computations:
            own = program.node_of[start : start + len(computation.instructions)].tolist()
            start += len(own)
            place = [instruction.id for instruction in computation.instructions].index(computation.root_id)
            self._roots[computation.id] = own[place]
            numbered = [node for node in own if self.nodes[node].opcode == "parameter"]
            parameters[computation.id] = sorted(numbered, key=lambda node: self.nodes[node].parameter_number)
            for node in own:
                self._computation[node] = computation.id
        if module.entry_computation_id not in parameters:
            raise DataError("entry_computation_id", "the id of a computation", module.entry_computation_id)
        self.entry = parameters[module.entry_computation_id]
        self._callers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # node, place among its computations
        for node, instruction in enumerate(self.nodes):
            for place, called in enumerate(instruction.called_computation_ids):
                self._callers[called].append((node, place))
        self.sources: dict[Value, list[Value]] = {}
        self.sinks: dict[Value, list[Value]] = defaultdict(list)
        for node, instruction in enumerate(self.nodes):
            for value, _ in leaves(instruction.shape, Value(node)) if is_flow(instruction) else ():
                self.sources[value] = [*self._sources(value, instruction)]
                for source in self.sources[value]:
                    self.sinks[source].append(value)

    def shape(self, value: Value) -> ShapeProto:
        """Return the shape of a value."""
        shape = self.nodes[value.node].shape
        for index in value.path:
            shape = shape.tuple_shapes[index]
        return shape

    def _operand(self, node: int, position: int, path: tuple[int, ...]) -> Iterator[Value]:
        if position < len(self.operands[node]):
            yield Value(self.operands[node][position], path)

    def _sources(self, value: Value, instruction: HloInstructionProto) -> Iterator[Value]:
        (node, path), called = value, instruction.called_computation_ids
        match instruction.opcode:
            case "get-tuple-element":
                yield from self._operand(node, 0, (instruction.tuple_index, *path))
            case "tuple":
                yield from self._operand(node, path[0], path[1:]) if path else ()
            case "call" | "fusion":
                yield Value(self._roots[called[0]], path)
            case "while":
                yield from self._loop(node, path)
            case "conditional":
                yield from (Value(self._roots[branch], path) for branch in called)
            case "parameter":
                for caller, place in self._callers[self._computation[node]]:
                    opcode = self.nodes[caller].opcode
                    if opcode in CALLS:
                        yield from self._operand(caller, instruction.parameter_number, path)
                    elif opcode == "while":
                        yield from self._loop(caller, path)
                    elif opcode == "conditional":
                        yield from self._operand(caller, 1 + place, path)
            case _:
                yield from self._operand(node, 0, path)

    def _loop(self, node: int, path: tuple[int, ...]) -> Iterator[Value]:
        """Yield the initial value of a loop, and the result of its body, which is before the condition."""
        yield from self._operand(node, 0, path)
        yield Value(self._roots[self.nodes[node].called_computation_ids[0]], path)


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


_MOVES = ("convert", "reshape", "bitcast", "broadcast", "transpose")
_FIRST = (*_MOVES, "slice", "reverse", "pad", "reduce", "dynamic-slice")
_ALL = ("add", "concatenate", "maximum", "minimum")
# Operands whose elements reach the output, or are added to something that does; None stands for all operands.
_INDEX: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys((*_FIRST, "gather", "reduce-window", "sort"), (0,)),
    **dict.fromkeys((*_ALL, "subtract"), None),
    "select": (1, 2), "dynamic-update-slice": (0, 1), "clamp": (1,),
}  # fmt: skip
_POSITIVE: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys((*_FIRST, "sqrt", "power"), (0,)),
    **dict.fromkeys((*_ALL, "multiply", "divide"), None),
    "select": (1, 2), "clamp": (1,),
}  # fmt: skip


def demands(flow: Dataflow) -> dict[Value, Demand]:
    """Return the demands on the parameters of the entry computation, and on the elements of those that are tuples.

    Demands go back from the operands of gathers, scatters, dynamic slices, comparisons with an iota, roots and
    logarithms, through everything that copies, moves or adds elements.
    """
    found: dict[Value, Demand] = {}
    waiting = [(Value(node), demand) for number in range(len(flow.nodes)) for node, demand in _own(flow, number)]
    while waiting:
        value, demand = waiting.pop()
        before = found.get(value, Demand())
        if (after := before.both(demand)) == before:
            continue
        found[value] = after
        waiting += [(source, after) for source in flow.sources.get(value, ())]
        if not value.path:
            waiting += _passed_on(flow, value.node, after)
    entry = {*flow.entry}
    return {value: demand for value, demand in found.items() if value.node in entry}


def _passed_on(flow: Dataflow, node: int, demand: Demand) -> Iterator[tuple[Value, Demand]]:
    """Yield the operands that must meet the demand on a node."""
    opcode, operands = flow.nodes[node].opcode, flow.operands[node]
    square = opcode == "multiply" and operands[0] == operands[1]
    index, positive = demand.bound is not None, demand.positive and not square
    for table, part in [(_INDEX, Demand(demand.bound))] * index + [(_POSITIVE, Demand(positive=True))] * positive:
        positions = table.get(opcode, ())
        for operand in operands if positions is None else (operands[position] for position in positions):
            yield Value(operand), part


def _own(flow: Dataflow, node: int) -> Iterator[tuple[int, Demand]]:
    """Yield the operands of a node on which it has a demand by itself."""
    instruction, operands = flow.nodes[node], flow.operands[node]
    sizes = [[*flow.nodes[operand].shape.dimensions] for operand in operands]
    match instruction.opcode:
        case "sqrt" | "rsqrt" | "log" | "power":
            yield operands[0], Demand(positive=True)
        case "gather":
            numbers = instruction.gather_dimension_numbers
            bounds = [sizes[0][dim] - instruction.gather_slice_sizes[dim] + 1 for dim in numbers.start_index_map]
            yield from _components(flow, operands[1], numbers.index_vector_dim, bounds)
        case "scatter":
            scattered, indices = instruction.scatter_dimension_numbers, len(operands) // 2
            without = {*scattered.inserted_window_dims, *scattered.input_batching_dims}
            dims = [dim for dim in range(len(sizes[0])) if dim not in without]
            windows = zip(dims, scattered.update_window_dims, strict=False)
            window = {dim: sizes[indices + 1][place] for dim, place in windows}
            bounds = [sizes[0][dim] - window.get(dim, 1) + 1 for dim in scattered.scatter_dims_to_operand_dims]
            yield from _components(flow, operands[indices], scattered.index_vector_dim, bounds)
        case "dynamic-slice" | "dynamic-update-slice" as opcode:
            update = opcode == "dynamic-update-slice"
            part = sizes[1] if update else [*instruction.dynamic_slice_sizes]
            for start, size, length in zip(operands[1 + update :], sizes[0], part, strict=False):
                yield start, _smallest([size - length + 1])
        case "compare":
            for operand, other in (operands, operands[::-1]):
                if (counted := _counted(flow, other)) is not None:
                    yield operand, _smallest([counted])


def _smallest(sizes: list[int]) -> Demand:
    return Demand(max(1, min(sizes, default=1)))


def _components(flow: Dataflow, indices: int, dim: int, bounds: list[int]) -> Iterator[tuple[int, Demand]]:
    """Yield the arrays that a tensor of index vectors is concatenated from; each has its own bound."""
    while flow.nodes[indices].opcode == "convert":
        (indices,) = flow.operands[indices]
    instruction, parts = flow.nodes[indices], flow.operands[indices]
    if instruction.opcode == "concatenate" and [*instruction.dimensions] == [dim] and len(parts) == len(bounds):
        yield from ((part, _smallest([bound])) for part, bound in zip(parts, bounds, strict=True))
    else:
        yield indices, _smallest(bounds)


def _counted(flow: Dataflow, node: int) -> int | None:
    """Return the size of the iota that a node repeats; None for other values."""
    while flow.nodes[node].opcode in (*_MOVES, "copy"):
        node = flow.operands[node][0]
    instruction = flow.nodes[node]
    if instruction.opcode != "iota":
        return None
    return instruction.shape.dimensions[instruction.dimensions[0] if instruction.dimensions else 0]
