"""Triton GEMM configurations: drawing, compiler options, and representation as bounds of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hlorank.hlo.hlo_pb2 import TileSizeConfig
from hlorank_collect.tiles.gemms import GemmSizes

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
        """Return the compiler options of a module that holds one dot.

        The override applies to all Triton GEMMs of a module. Its own split_k stays 1: a separate pass of XLA splits
        products, with an option of its own, and the Triton backend rejects other values.
        """
        key = (
            f"block_m: {self.block_m} block_n: {self.block_n} block_k: {self.block_k} split_k: 1 "
            f"num_stages: {self.num_stages} num_warps: {self.num_warps} num_ctas: 1"
        )
        return {
            **OPTIONS,
            "xla_gpu_override_gemm_autotuner": key,
            "xla_gpu_experimental_force_split_k": self.split_k,
        }

    def bounds(self, gemm: GemmSizes) -> TileSizeConfig:
        """Return the configuration as bounds of a tile, the source of the 24 features of a tile configuration.

        Returns:
            Output bounds (1 for each batch dimension, block_m, block_n), kernel bounds (block_k), and as input bounds,
            which the dataset hardly uses, split_k, num_stages and num_warps.
        """
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
    one = configuration
    staged = one.num_stages * (one.block_m + one.block_n) * one.block_k * gemm.element_bytes
    sums = one.block_m * one.block_n
    return (
        staged <= _SHARED_BYTES
        and sums <= _REGISTERS * _WARP_THREADS * one.num_warps
        and (one.split_k == 1 or one.split_k * one.block_k <= gemm.k)
    )


def draw_configurations(gemm: GemmSizes, count: int, rng: np.random.Generator) -> list[GemmConfiguration]:
    """Draw `count` distinct configurations that may fit, fewer if there are hardly more, the default first."""
    known = {default_configuration(gemm): None}
    allowed = (_blocks(gemm.m), _blocks(gemm.n), _blocks(gemm.k), _SPLITS, _STAGES, _WARPS)
    for _ in range(_ATTEMPTS * count):
        if len(known) >= count:
            break
        drawn = GemmConfiguration(*(int(rng.choice(some)) for some in allowed))
        if fits(drawn, gemm):
            known.setdefault(drawn)
    return list(known)
