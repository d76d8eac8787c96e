"""Flow of values through the computations of a module: tuples, calls, loops and branches."""

from __future__ import annotations

from collections.abc import Iterator
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


class Value(NamedTuple):
    """An array: the output of a node or, with a path, an element of its tuple."""

    node: int
    path: tuple[int, ...] = ()


def is_annotation(one: HloInstructionProto) -> bool:
    """Return True if an instruction is a custom call that returns its operand."""
    return one.opcode == "custom-call" and one.custom_call_target in ANNOTATIONS


class Dataflow:
    """Instructions of a module with their operands, users and called computations.

    Args:
        module: its instructions are referred to, not copied.

    Attributes:
        nodes: all instructions; operands are before their users, called computations before their callers.
        operands: the nodes of the operands of each node.
        users: user and position of the operand, for each use of each node.
        entry: the nodes of the parameters of the entry computation, by number.

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
        self._parameters: dict[int, list[int]] = {}
        self._roots: dict[int, int] = {}
        self._computation: list[int] = [0] * len(self.nodes)
        start = 0
        for computation in module.computations:
            own = program.node_of[start : start + len(computation.instructions)].tolist()
            start += len(own)
            self._roots[computation.id] = own[[one.id for one in computation.instructions].index(computation.root_id)]
            parameters = [node for node in own if self.nodes[node].opcode == "parameter"]
            self._parameters[computation.id] = sorted(parameters, key=lambda node: self.nodes[node].parameter_number)
            for node in own:
                self._computation[node] = computation.id
        if module.entry_computation_id not in self._parameters:
            raise DataError("entry_computation_id", "the id of a computation", module.entry_computation_id)
        self.entry = self._parameters[module.entry_computation_id]
        self._callers: dict[int, list[tuple[int, int]]] = {}  # computation -> nodes, and its position among the called
        for node, one in enumerate(self.nodes):
            for position, called in enumerate(one.called_computation_ids):
                self._callers.setdefault(called, []).append((node, position))

    def shape(self, value: Value) -> ShapeProto:
        """Return the shape of a value."""
        shape = self.nodes[value.node].shape
        for index in value.path:
            shape = shape.tuple_shapes[index]
        return shape

    def _called(self, node: int, position: int) -> int:
        return self.nodes[node].called_computation_ids[position]

    def _parameter(self, node: int, called: int, number: int, path: tuple[int, ...]) -> Iterator[Value]:
        parameters = self._parameters[self._called(node, called)]
        if number < len(parameters):
            yield Value(parameters[number], path)

    def _root(self, node: int, called: int, path: tuple[int, ...]) -> Value:
        return Value(self._roots[self._called(node, called)], path)

    def sources(self, value: Value) -> Iterator[Value]:
        """Yield the values that a value is a copy of, because of tuples, calls, loops and branches."""
        (node, path), one, operands = value, self.nodes[value.node], self.operands[value.node]
        if one.opcode == "get-tuple-element":
            yield Value(operands[0], (one.tuple_index, *path))
        elif one.opcode == "tuple" and path:
            yield Value(operands[path[0]], path[1:])
        elif one.opcode in _SAME or is_annotation(one):
            yield Value(operands[0], path)
        elif one.opcode in CALLS:
            yield self._root(node, 0, path)
        elif one.opcode == "while":
            yield Value(operands[0], path)
            yield self._root(node, 0, path)  # the body, before the condition
        elif one.opcode == "conditional":
            for branch in range(len(one.called_computation_ids)):
                yield self._root(node, branch, path)
        elif one.opcode == "parameter":
            for caller, position in self._callers.get(self._computation[node], ()):
                yield from self._arguments(caller, position, one.parameter_number, path)

    def _arguments(self, caller: int, position: int, number: int, path: tuple[int, ...]) -> Iterator[Value]:
        opcode, operands = self.nodes[caller].opcode, self.operands[caller]
        if opcode in CALLS:
            yield Value(operands[number], path)
        elif opcode == "while":
            yield Value(operands[0], path)
            yield self._root(caller, 0, path)
        elif opcode == "conditional":
            yield Value(operands[1 + position], path)

    def sinks(self, value: Value) -> Iterator[Value]:
        """Yield the values that are a copy of a value, because of tuples, calls, loops and branches."""
        node, path = value
        for user, position in self.users[node]:
            one = self.nodes[user]
            if one.opcode == "get-tuple-element":
                if path and path[0] == one.tuple_index:
                    yield Value(user, path[1:])
            elif one.opcode == "tuple":
                yield Value(user, (position, *path))
            elif one.opcode in _SAME or is_annotation(one):
                yield Value(user, path)
            elif one.opcode in CALLS:
                yield from self._parameter(user, 0, position, path)
            elif one.opcode == "while":
                yield from self._into_loop(user, path)
            elif one.opcode == "conditional" and position:
                yield from self._parameter(user, position - 1, 0, path)
        computation = self._computation[node]
        if self._roots[computation] == node:
            for caller, position in self._callers.get(computation, ()):
                opcode = self.nodes[caller].opcode
                if opcode in (*CALLS, "conditional"):
                    yield Value(caller, path)
                elif opcode == "while" and position == 0:
                    yield from self._into_loop(caller, path)

    def _into_loop(self, loop: int, path: tuple[int, ...]) -> Iterator[Value]:
        yield Value(loop, path)
        yield from self._parameter(loop, 0, 0, path)
        yield from self._parameter(loop, 1, 0, path)
