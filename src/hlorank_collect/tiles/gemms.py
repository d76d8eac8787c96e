"""Matrix products of a program, each as a separate module, so that one compiler option sets its configuration."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto

ELEMENT_TYPES: dict[int, str] = {10: "float16", 11: "float32", 16: "bfloat16"}
"""Element types of measured products, by xla.PrimitiveType: those that Triton multiplies on tensor cores."""


class UnsupportedGemmError(Exception):
    """A product that is not measured; the message is the reason, equal for all products with that reason."""


@dataclass(frozen=True)
class GemmSizes:
    """Sizes of a product of matrices: (batch, m, k) with (batch, k, n)."""

    batch: int
    """Product of the batch dimensions."""
    batch_dims: int
    """Number of batch dimensions."""
    m: int
    """Product of the remaining dimensions of the left operand."""
    n: int
    """Product of the remaining dimensions of the right operand."""
    k: int
    """Product of the contracted dimensions."""
    element_bytes: int
    """Bytes of an element of the wider operand."""

    @classmethod
    def of(cls, dot: HloInstructionProto, lhs: ShapeProto, rhs: ShapeProto) -> GemmSizes:
        """Return the sizes of a dot.

        Raises:
            UnsupportedGemmError: the dot is a matrix-vector product, or has an element type that is not measured.
        """
        if not {lhs.element_type, rhs.element_type, dot.shape.element_type} <= set(ELEMENT_TYPES):
            raise UnsupportedGemmError("element type")
        numbers = dot.dot_dimension_numbers
        batch = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_batch_dimensions)
        k = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_contracting_dimensions)
        m, n = (math.prod(shape.dimensions) // max(batch * k, 1) for shape in (lhs, rhs))
        if min(m, n) < 2 or k < 2:
            raise UnsupportedGemmError("no matrix product")
        wider = 4 if 11 in (lhs.element_type, rhs.element_type) else 2
        return cls(batch, len(numbers.lhs_batch_dimensions), m, n, k, wider)

    @property
    def work(self) -> int:
        """Number of multiplications."""
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True, eq=False)
class Gemm:
    """One matrix product of a program: two parameters and a dot."""

    name: str
    """Name of the program, a dot, and the first digits of the fingerprint."""
    fingerprint: str
    """Equal for products of the same shapes, types and attributes."""
    module: HloModuleProto
    sizes: GemmSizes

    def random_operands(self, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw normal values of both operands; jax must be imported, as it registers bfloat16."""
        return [
            rng.standard_normal(tuple(shape.dimensions), np.float32).astype(ELEMENT_TYPES[shape.element_type])
            for shape in self.module.host_program_shape.parameters
        ]


@dataclass
class Gemms:
    """Matrix products of a program."""

    distinct: list[Gemm] = field(default_factory=list)
    repeated: int = 0
    """Number of products that equal an earlier one."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of products that are not supported, by reason."""


def extract_gemms(program: str, module: HloModuleProto) -> Gemms:
    """Return the distinct dots of a module, each with its operands as parameters.

    Args:
        program: name of the program, the prefix of the products' names.
        module: the module before optimization, in which every product is still a dot.
    """
    gemms, known = Gemms(), set()
    for computation in module.computations:
        shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
        for dot in computation.instructions:
            if dot.opcode != "dot":
                continue
            try:
                sizes = GemmSizes.of(dot, *(shapes[operand] for operand in dot.operand_ids))
            except UnsupportedGemmError as error:
                gemms.left_out[str(error)] += 1
                continue
            isolated = _module(dot, shapes)
            fingerprint = _fingerprint(isolated)
            isolated.name = f"{program}.{fingerprint[:8]}"
            if fingerprint in known:
                gemms.repeated += 1
            else:
                known.add(fingerprint)
                gemms.distinct.append(Gemm(isolated.name, fingerprint, isolated, sizes))
    return gemms


def _module(dot: HloInstructionProto, shapes: Mapping[int, ShapeProto]) -> HloModuleProto:
    """Return a module of a dot, without metadata; an operand on both sides becomes two parameters."""
    entry = HloComputationProto(name="kernel", id=1, root_id=2)
    module = HloModuleProto(id=1, entry_computation_id=entry.id, entry_computation_name=entry.name)
    for number, operand in enumerate(dot.operand_ids):
        name, shape = f"operand.{number}", shapes[operand]
        entry.instructions.add(name=name, opcode="parameter", id=number, parameter_number=number, shape=shape)
        module.host_program_shape.parameters.add().CopyFrom(shape)
        module.host_program_shape.parameter_names.append(name)
    root = entry.instructions.add()
    root.CopyFrom(dot)
    root.ClearField("metadata")
    root.id = entry.root_id
    root.operand_ids[:] = range(len(dot.operand_ids))
    module.host_program_shape.result.CopyFrom(root.shape)
    module.computations.append(entry)
    return module


def _fingerprint(module: HloModuleProto) -> str:
    """Return a SHA-256 of opcodes, shapes, attributes and edges; names have no effect."""
    digest = hashlib.sha256()
    for instruction in module.computations[0].instructions:
        anonymous = HloInstructionProto()
        anonymous.CopyFrom(instruction)
        for name in ("name", "id", "operand_ids", "parameter_number", "tuple_index"):
            anonymous.ClearField(name)
        # Products of static shapes have the fingerprints that they had before this field was read.
        for shape in (anonymous.shape, *anonymous.operand_shapes_with_layout):
            shape.ClearField("is_dynamic_dimension")
        anonymous.DiscardUnknownFields()
        digest.update(anonymous.SerializeToString(deterministic=True))
        digest.update(repr([*instruction.operand_ids]).encode())
    return digest.hexdigest()
