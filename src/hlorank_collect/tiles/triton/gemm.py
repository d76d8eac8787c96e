"""Matrix products of a program, each as a separate module, so that one compiler option sets its configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto
from hlorank_collect.tiles.kernel import Body, Harvest, Kernel, UnsupportedKernelError, as_module

ELEMENT_TYPES: dict[int, str] = {10: "float16", 11: "float32", 16: "bfloat16"}
"""Element types of measured products, by xla.PrimitiveType: those that Triton multiplies on tensor cores."""


@dataclass(frozen=True)
class Gemm:
    """Sizes of a product of matrices: (batch, m, k) with (batch, k, n).

    Attributes:
        batch: product of the batch dimensions.
        batch_dims: number of batch dimensions.
        m: product of the remaining dimensions of the left operand.
        n: product of the remaining dimensions of the right operand.
        k: product of the contracted dimensions.
        element_bytes: bytes of an element of the wider operand.
    """

    batch: int
    batch_dims: int
    m: int
    n: int
    k: int
    element_bytes: int

    @classmethod
    def of(cls, body: Body) -> Gemm:
        """Return the sizes of a dot.

        Raises:
            UnsupportedKernelError: the dot is a matrix-vector product, or has an element type that is not measured.
        """
        dot = body.instructions[body.root]
        lhs, rhs = (operand.shape for operand in body.operands(dot))
        if not {lhs.element_type, rhs.element_type, dot.shape.element_type} <= set(ELEMENT_TYPES):
            raise UnsupportedKernelError("element type")
        numbers = dot.dot_dimension_numbers
        batch = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_batch_dimensions)
        k = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_contracting_dimensions)
        m, n = (math.prod(shape.dimensions) // max(batch * k, 1) for shape in (lhs, rhs))
        if min(m, n) < 2 or k < 2:
            raise UnsupportedKernelError("no matrix product")
        wider = 4 if 11 in (lhs.element_type, rhs.element_type) else 2
        return cls(batch, len(numbers.lhs_batch_dimensions), m, n, k, wider)

    @property
    def work(self) -> int:
        """Number of multiplications."""
        return self.batch * self.m * self.n * self.k


def harvest_gemms(program: str, module: HloModuleProto) -> Harvest:
    """Return the distinct dots of a module, each with its operands as parameters.

    Args:
        program: name of the program, the prefix of the kernels' names.
        module: the module before optimization, in which every product is still a dot.
    """
    found = Harvest()
    for computation in module.computations:
        shapes = {one.id: one.shape for one in computation.instructions}
        for one in computation.instructions:
            if one.opcode != "dot":
                continue
            kernel = _as_kernel(program, one, shapes)
            try:
                Gemm.of(kernel.body)
            except UnsupportedKernelError as error:
                found.left_out[str(error)] += 1
            else:
                found.add(kernel)
    return found


def _as_kernel(program: str, dot: HloInstructionProto, shapes: Mapping[int, ShapeProto]) -> Kernel:
    """Return a dot as a kernel; an operand on both sides becomes two parameters."""
    entry = HloComputationProto(name="kernel", id=1, root_id=2)
    for number, operand in enumerate(dot.operand_ids):
        entry.instructions.add(
            name=f"operand.{number}", opcode="parameter", id=number, parameter_number=number, shape=shapes[operand]
        )
    root = entry.instructions.add()
    root.CopyFrom(dot)
    root.id = entry.root_id
    root.operand_ids[:] = range(len(dot.operand_ids))
    module = as_module("", [entry])
    instructions = {one.id: one for one in module.computations[0].instructions}
    return Kernel.of(program, module, Body(instructions, entry.root_id, {}))


def random_operands(body: Body, rng: np.random.Generator) -> list[NDArray[Any]]:
    """Draw normal values of both operands, in their element types; jax must be imported, as it registers bfloat16."""
    return [
        rng.standard_normal(tuple(one.shape.dimensions), np.float32).astype(ELEMENT_TYPES[one.shape.element_type])
        for one in body.parameters
    ]
