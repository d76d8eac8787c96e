"""Matrix products of a program, each as a separate module, and their Triton configurations, a compiler option."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from hlorank.hlo.hlo_pb2 import (
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    ProgramShapeProto,
    ShapeProto,
    TileSizeConfig,
)
from hlorank_collect.program import SkippedError

ELEMENT_TYPES: dict[int, str] = {10: "float16", 11: "float32", 16: "bfloat16"}
"""Element types of measured products, by xla.PrimitiveType, which Triton multiplies on tensor cores."""

# Triton has powers of two only. XLA accepts no block_k below 16.
_BLOCKS = (16, 32, 64, 128, 256)
_SPLITS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5)
_WARPS = (2, 4, 8, 16)
# Upper limits of any GPU: bytes of shared memory of a block, and 32-bit registers of a thread.
_SHARED_BYTES = 227 * 1024
_REGISTERS = 255
_WARP_THREADS = 32

OPTIONS: Mapping[str, str | int | bool] = {
    "xla_gpu_experimental_autotune_backends": "TRITON",  # the only one, so that no library computes the product
    "xla_gpu_autotune_level": 0,  # take the first configuration, which is the only one, without trying it
    "xla_gpu_triton_gemm_any": True,  # for products without fused operations, too
    "xla_gpu_gemm_rewrite_size_threshold": 0,  # for small products, too
}
"""Compiler options that make XLA compile a product with Triton, in the overriding configuration."""


@dataclass(frozen=True)
class GemmSizes:
    """Sizes of a product of matrices, (batch, m, k) with (batch, k, n), each a product of dimensions."""

    batch: int
    batch_dims: int
    """Number of batch dimensions."""
    m: int
    n: int
    k: int
    element_bytes: int
    """Bytes of an element of the wider operand."""

    @classmethod
    def of(cls, dot: HloInstructionProto, lhs: ShapeProto, rhs: ShapeProto) -> GemmSizes:
        """Return the sizes of a dot; raise SkippedError if it is no product of matrices of these types."""
        if not {lhs.element_type, rhs.element_type, dot.shape.element_type} <= set(ELEMENT_TYPES):
            raise SkippedError("element type")
        numbers = dot.dot_dimension_numbers
        batch = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_batch_dimensions)
        k = math.prod(lhs.dimensions[dim] for dim in numbers.lhs_contracting_dimensions)
        m, n = (math.prod(shape.dimensions) // max(batch * k, 1) for shape in (lhs, rhs))
        if min(m, n) < 2 or k < 2:
            raise SkippedError("no matrix product")
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
    """SHA-256 of the module, equal for products of the same shapes, types and attributes."""
    module: HloModuleProto
    sizes: GemmSizes


def extract_gemms(program: str, module: HloModuleProto) -> tuple[list[Gemm], Counter[str]]:
    """Return the distinct dots of a module before optimization, with operands as parameters, and why others are none.

    The reasons are counted.
    """
    distinct: dict[str, Gemm] = {}
    left_out = Counter[str]()
    for computation in module.computations:
        shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
        for dot in (instruction for instruction in computation.instructions if instruction.opcode == "dot"):
            try:
                sizes = GemmSizes.of(dot, *(shapes[operand] for operand in dot.operand_ids))
            except SkippedError as error:
                left_out[str(error)] += 1
                continue
            isolated = _module(dot, shapes)
            fingerprint = hashlib.sha256(isolated.SerializeToString(deterministic=True)).hexdigest()
            if fingerprint in distinct:
                left_out["equal to another"] += 1
                continue
            isolated.name = f"{program}.{fingerprint[:8]}"
            distinct[fingerprint] = Gemm(isolated.name, fingerprint, isolated, sizes)
    return [*distinct.values()], left_out


def _module(dot: HloInstructionProto, shapes: Mapping[int, ShapeProto]) -> HloModuleProto:
    """Return a module of a dot, equal for equal dots; an operand on both sides becomes two parameters."""
    root = HloInstructionProto()
    root.CopyFrom(dot)
    root.ClearField("metadata")
    root.name, root.id = "product", 2
    root.operand_ids[:] = [0, 1]
    operands = [shapes[operand] for operand in dot.operand_ids]
    entry = HloComputationProto(name="kernel", id=1, root_id=root.id)
    for number, shape in enumerate(operands):
        entry.instructions.add(
            name=f"operand.{number}", opcode="parameter", id=number, parameter_number=number, shape=shape
        )
    entry.instructions.append(root)
    names = [parameter.name for parameter in entry.instructions[:-1]]
    program_shape = ProgramShapeProto(parameters=operands, parameter_names=names, result=root.shape)
    return HloModuleProto(
        id=1,
        entry_computation_id=entry.id,
        entry_computation_name=entry.name,
        computations=[entry],
        host_program_shape=program_shape,
    )


@dataclass(frozen=True)
class GemmConfiguration:
    """One Triton GEMM configuration, with the field names of `AutotuneResult.TritonGemmKey` (xla/autotuning.proto).

    A block of threads computes block_m rows and block_n columns of the result, and multiplies block_k elements of the
    contracted dimension at a time, of which split_k parts have blocks of their own.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_stages: int
    """Number of loads in flight."""
    num_warps: int
    """Number of warps of a block."""

    @property
    def name(self) -> str:
        """Name such as m64.n64.k32.split1.stages3.warps4."""
        blocks = f"m{self.block_m}.n{self.block_n}.k{self.block_k}"
        return f"{blocks}.split{self.split_k}.stages{self.num_stages}.warps{self.num_warps}"

    def options(self) -> dict[str, str | int | bool]:
        """Return the compiler options of a module that holds one dot."""
        # A separate pass of XLA splits products, with an option of its own; the Triton backend rejects other values.
        key = (
            f"block_m: {self.block_m} block_n: {self.block_n} block_k: {self.block_k} split_k: 1 "
            f"num_stages: {self.num_stages} num_warps: {self.num_warps} num_ctas: 1"
        )
        return {**OPTIONS, "xla_gpu_override_gemm_autotuner": key, "xla_gpu_experimental_force_split_k": self.split_k}

    def bounds(self, gemm: GemmSizes) -> TileSizeConfig:
        """Return the configuration as bounds of a tile; the dataset hardly uses input bounds, so they are the rest."""
        return TileSizeConfig(
            output_bounds=[*[1] * gemm.batch_dims, self.block_m, self.block_n],
            kernel_bounds=[self.block_k],
            input_bounds=[self.split_k, self.num_stages, self.num_warps],
        )


def _blocks(size: int) -> list[int]:
    """Return the block sizes of a dimension, up to the first one that covers it."""
    return [block for block in _BLOCKS if block == _BLOCKS[0] or block < 2 * size]


def default_configuration(gemm: GemmSizes) -> GemmConfiguration:
    """Return a configuration by a fixed rule; it is not XLA's own choice, which depends on the GPU."""
    block_m, block_n, block_k = (
        min(limit, _blocks(size)[-1]) for limit, size in ((64, gemm.m), (64, gemm.n), (32, gemm.k))
    )
    return GemmConfiguration(block_m, block_n, block_k, split_k=1, num_stages=3, num_warps=4)


def fits(configuration: GemmConfiguration, gemm: GemmSizes) -> bool:
    """Return True if a GPU may be able to run a configuration, and every part of a split has at least one block."""
    m, n, k = configuration.block_m, configuration.block_n, configuration.block_k
    staged = configuration.num_stages * (m + n) * k * gemm.element_bytes
    fits_registers = m * n <= _REGISTERS * _WARP_THREADS * configuration.num_warps
    fits_split = configuration.split_k == 1 or configuration.split_k * k <= gemm.k
    return staged <= _SHARED_BYTES and fits_registers and fits_split


def draw_configurations(gemm: GemmSizes, count: int, rng: np.random.Generator) -> list[GemmConfiguration]:
    """Draw `count` distinct configurations that may fit, fewer if there are no more, the default first."""
    default = default_configuration(gemm)
    allowed = product(_blocks(gemm.m), _blocks(gemm.n), _blocks(gemm.k), _SPLITS, _STAGES, _WARPS)
    every = (GemmConfiguration(*values) for values in allowed)
    others = [one for one in every if one != default and fits(one, gemm)]
    return [default, *(others[place] for place in rng.permutation(len(others))[: count - 1])]
