"""Kernels: the fusions, dots, convolutions and reductions of a compiled module, each as a separate small module."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto

Kind = Literal["convolution", "dot", "reduction", "loop"]
KINDS: tuple[Kind, ...] = ("convolution", "dot", "reduction", "loop")
"""Kinds of kernels; a kernel has the first kind of those of its instructions."""

CONTRACTIONS: dict[str, Kind] = {
    "dot": "dot",
    "convolution": "convolution",
    "reduce": "reduction",
    "reduce-window": "reduction",
}
"""Opcodes that combine values over dimensions that their result does not have -> kind of their kernel."""
ELEMENT_TYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype(np.bool_),
    4: np.dtype(np.int32),
    8: np.dtype(np.uint32),
    11: np.dtype(np.float32),
}
"""Supported element types, by xla.PrimitiveType."""

# Instructions that only move, create or wait for data, or run other computations.
_NOT_KERNELS = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "add-dependency", "opt-barrier", "partition-id", "replica-id",
}  # fmt: skip
_APPLIED = {"fusion", "reduce", "reduce-window", "scatter", "select-and-scatter", "map", "sort", "all-reduce"}
_TUPLE = 13


class UnsupportedKernelError(Exception):
    """A kernel that is not measured; the message is the reason, equal for all kernels with that reason."""


def dtype_of(shape: ShapeProto) -> np.dtype[np.generic]:
    """Return the numpy type of a shape's elements.

    Raises:
        UnsupportedKernelError: kernels of that element type are not supported.
    """
    if shape.element_type not in ELEMENT_TYPES:
        raise UnsupportedKernelError("several outputs" if shape.element_type == _TUPLE else "element type")
    return ELEMENT_TYPES[shape.element_type]


@dataclass(frozen=True, eq=False)
class Body:
    """A kernel as one computation, with the content of its fusion.

    Attributes:
        instructions: by id, operands first.
        root: id of the result.
        regions: computations that reductions apply, by id.
    """

    instructions: Mapping[int, HloInstructionProto]
    root: int
    regions: Mapping[int, HloComputationProto]

    @property
    def parameters(self) -> list[HloInstructionProto]:
        """Parameters on which the result depends, in the order of their numbers."""
        found = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return sorted(found, key=lambda one: one.parameter_number)

    @property
    def kind(self) -> Kind:
        """Kind of the kernel, from its contractions."""
        kinds = {CONTRACTIONS.get(one.opcode, "loop") for one in self.instructions.values()}
        return min(kinds, key=KINDS.index)

    def operands(self, instruction: HloInstructionProto) -> list[HloInstructionProto]:
        """Return the operands of an instruction of this computation."""
        return [self.instructions[operand] for operand in instruction.operand_ids]

    def fingerprint(self) -> str:
        """Return a SHA-256 of opcodes, shapes, attributes and edges; names, ids and order have no effect."""
        digest = hashlib.sha256()
        places = {id_: place for place, id_ in enumerate(self.instructions)}
        for one in self.instructions.values():
            anonymous = HloInstructionProto()
            anonymous.CopyFrom(one)
            for name in ("name", "id", "operand_ids", "called_computation_ids", "parameter_number", "metadata"):
                anonymous.ClearField(name)
            # Kernels of static shapes have the fingerprints that they had before these fields were read.
            anonymous.ClearField("tuple_index")
            literal = [anonymous.literal.shape] if anonymous.HasField("literal") else []
            for shape in (anonymous.shape, *literal, *anonymous.operand_shapes_with_layout):
                shape.ClearField("is_dynamic_dimension")
            anonymous.DiscardUnknownFields()
            digest.update(anonymous.SerializeToString(deterministic=True))
            digest.update(repr([places[operand] for operand in one.operand_ids]).encode())
            for called in one.called_computation_ids:
                digest.update(_region(self.regions[called], self.regions).fingerprint().encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of a program.

    Attributes:
        name: name of the program, a dot, and the first digits of the fingerprint.
        fingerprint: equal for kernels of the same structure.
        module: an entry computation of parameters, constants and the instruction, and the computations that it calls,
            as in the official records of tiles.
        body: the same kernel as one computation.
    """

    name: str
    fingerprint: str
    module: HloModuleProto
    body: Body

    @classmethod
    def of(cls, program: str, module: HloModuleProto, body: Body) -> Kernel:
        """Return the kernel of a module and its body; the module gets the kernel's name."""
        digits = body.fingerprint()
        module.name = f"{program}.{digits[:8]}"
        return cls(module.name, digits, module, body)


@dataclass
class Harvest:
    """Kernels found in a program.

    Attributes:
        kernels: distinct kernels.
        repeated: number of kernels with the structure of an earlier one.
        left_out: number of kernels that are not supported, by reason.
    """

    kernels: list[Kernel] = field(default_factory=list)
    repeated: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, kernel: Kernel) -> None:
        """Add a kernel, unless there is one of its structure."""
        if any(kernel.fingerprint == other.fingerprint for other in self.kernels):
            self.repeated += 1
        else:
            self.kernels.append(kernel)


def harvest(program: str, module: HloModuleProto) -> Harvest:
    """Return the distinct kernels of an optimized module, in its order.

    Args:
        program: name of the program, the prefix of the kernels' names.
        module: the module after all passes.
    """
    found = Harvest()
    computations = {computation.id: computation for computation in module.computations}
    instructions = [one for computation in module.computations for one in computation.instructions]
    applied = {called for one in instructions if one.opcode in _APPLIED for called in one.called_computation_ids}
    for computation in module.computations:
        if computation.id in applied:
            continue
        by_id = {one.id: one for one in computation.instructions}
        for one in computation.instructions:
            if one.opcode in _NOT_KERNELS:
                continue
            try:
                if one.opcode == "custom-call":
                    raise UnsupportedKernelError("custom call")
                dtype_of(one.shape)
                isolated = _isolated(one, by_id, computations)
                found.add(Kernel.of(program, isolated, body_of(isolated)))
            except UnsupportedKernelError as error:
                found.left_out[str(error)] += 1
    return found


def _called(instruction: HloInstructionProto, computations: Mapping[int, HloComputationProto]) -> Iterator[int]:
    """Yield the ids of the computations that an instruction calls, directly and indirectly, callees first."""
    for called in instruction.called_computation_ids:
        for one in computations[called].instructions:
            yield from _called(one, computations)
        yield called


def _isolated(
    instruction: HloInstructionProto,
    by_id: Mapping[int, HloInstructionProto],
    computations: Mapping[int, HloComputationProto],
) -> HloModuleProto:
    """Return a module of one instruction: constant operands remain constants, the others become parameters."""
    root = HloInstructionProto()
    root.CopyFrom(instruction)
    entry = HloComputationProto(name="kernel", id=max(computations) + 1, root_id=len(root.operand_ids))
    parameters: list[ShapeProto] = []
    for number, operand in enumerate(instruction.operand_ids):
        given = HloInstructionProto(name=f"operand.{number}", opcode="parameter", id=number, shape=by_id[operand].shape)
        if by_id[operand].opcode == "constant":
            given.opcode = "constant"
            given.literal.CopyFrom(by_id[operand].literal)
        else:
            given.parameter_number = len(parameters)
            parameters.append(given.shape)
        entry.instructions.append(given)
    root.id = entry.root_id
    root.operand_ids[:] = range(len(root.operand_ids))
    entry.instructions.append(root)
    called = [computations[id_] for id_ in dict.fromkeys(_called(instruction, computations))]
    return as_module("", [*called, entry])


def as_module(name: str, computations: Sequence[HloComputationProto]) -> HloModuleProto:
    """Return a module whose last computation is the entry, without metadata."""
    entry = computations[-1]
    module = HloModuleProto(
        name=name, id=1, computations=computations, entry_computation_id=entry.id, entry_computation_name=entry.name
    )
    parameters = sorted(
        (one for one in entry.instructions if one.opcode == "parameter"), key=lambda one: one.parameter_number
    )
    module.host_program_shape.parameters.extend(one.shape for one in parameters)
    module.host_program_shape.parameter_names.extend(one.name for one in parameters)
    (root,) = (one for one in entry.instructions if one.id == entry.root_id)
    module.host_program_shape.result.CopyFrom(root.shape)
    for computation in module.computations:
        for one in computation.instructions:
            one.ClearField("metadata")
    return module


def _region(computation: HloComputationProto, regions: Mapping[int, HloComputationProto]) -> Body:
    return Body(_operands_first(computation.instructions, computation.root_id), computation.root_id, regions)


def _operands_first(instructions: Iterable[HloInstructionProto], root: int) -> dict[int, HloInstructionProto]:
    """Return the instructions on which the root depends, by id, in an order that depends only on the edges."""
    by_id = {one.id: one for one in instructions}
    ordered: dict[int, HloInstructionProto] = {}
    waiting = [root]
    while waiting:
        one = by_id[waiting[-1]]
        missing = [operand for operand in one.operand_ids if operand not in ordered]
        if missing:
            waiting.append(missing[0])
        else:
            ordered.setdefault(waiting.pop(), one)
    return ordered


def body_of(module: HloModuleProto) -> Body:
    """Return the kernel of a module as one computation.

    Raises:
        UnsupportedKernelError: the fusion contains a fusion, or an element type is not supported.
    """
    computations = {computation.id: computation for computation in module.computations}
    entry = computations[module.entry_computation_id]
    outer = {one.id: one for one in entry.instructions}
    root = outer[entry.root_id]
    if root.opcode == "fusion":
        fused = computations[root.called_computation_ids[0]]
        inner = []
        for one in fused.instructions:
            given = HloInstructionProto()
            given.CopyFrom(outer[root.operand_ids[one.parameter_number]] if one.opcode == "parameter" else one)
            given.id = one.id
            inner.append(given)
        body = Body(_operands_first(inner, fused.root_id), fused.root_id, computations)
    else:
        body = Body(_operands_first(entry.instructions, root.id), root.id, computations)
    for one in body.instructions.values():
        if one.opcode == "fusion":
            raise UnsupportedKernelError("fusion in a fusion")
        dtype_of(one.shape)
    return body
