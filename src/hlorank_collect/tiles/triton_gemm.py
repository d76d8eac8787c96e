"""Matrix products of a program, each as a separate module, and their Triton configurations, a compiler option."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto, TileSizeConfig

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
_ATTEMPTS = 50  # draws for each configuration before a space counts as exhausted

OPTIONS: Mapping[str, str | int | bool] = {
    "xla_gpu_experimental_autotune_backends": "TRITON",  # the only one, so that no library computes the product
    "xla_gpu_autotune_level": 0,  # take the first configuration, which is the only one, without trying it
    "xla_gpu_triton_gemm_any": True,  # for products without fused operations, too
    "xla_gpu_gemm_rewrite_size_threshold": 0,  # for small products, too
}
"""Compiler options that make XLA compile a product with Triton, in the overriding configuration."""


class UnsupportedGemmError(Exception):
    """A product that is not measured; the message is the reason, equal for all products with that reason."""


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
        """Return the sizes of a dot; raise UnsupportedGemmError if it is no product of matrices of these types."""
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
    """Return the distinct dots of a module before optimization, each with its operands as parameters."""
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
    """Draw `count` distinct configurations that may fit, fewer if there are hardly more, the default first."""
    known = {default_configuration(gemm): None}
    allowed = (_blocks(gemm.m), _blocks(gemm.n), _blocks(gemm.k), _SPLITS, _STAGES, _WARPS)
    for _ in range(_ATTEMPTS * count):
        if len(known) >= count:
            break
        drawn = GemmConfiguration(*(int(rng.choice(values)) for values in allowed))
        if fits(drawn, gemm):
            known.setdefault(drawn)
    return list(known)
