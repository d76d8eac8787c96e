"""Matrix products of programs, and configurations of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank_collect import xla
from hlorank_collect.tiles.triton_gemm import (
    Gemm,
    GemmConfiguration,
    GemmSizes,
    default_configuration,
    draw_configurations,
    fits,
)

from .conftest import GemmsOf

CONFIGURATION = GemmConfiguration(block_m=64, block_n=128, block_k=32, split_k=4, num_stages=3, num_warps=8)
SIZES = st.integers(2, 5000)


def test_the_compiler_reads_the_options_as_intended(gemm: Gemm, tmp_path: Path) -> None:
    xla.compile_module(gemm.module.SerializeToString(), overrides=CONFIGURATION.options(), dump=tmp_path)
    (dumped,) = tmp_path.glob("*.debug_options")
    found = dict(line.split(": ", 1) for line in dumped.read_text().splitlines() if ": " in line)
    assert found["xla_gpu_override_gemm_autotuner"] == (
        '"block_m: 64 block_n: 128 block_k: 32 split_k: 1 num_stages: 3 num_warps: 8 num_ctas: 1"'
    )
    assert found["xla_gpu_experimental_force_split_k"] == "4"
    assert found["xla_gpu_experimental_autotune_backends"] == "TRITON"
    assert found["xla_gpu_autotune_level"] == "0"


@settings(deadline=None, max_examples=30)
@given(m=SIZES, n=SIZES, k=SIZES, element_bytes=st.sampled_from([2, 4]), seed=st.integers(0, 9))
def test_configurations_are_distinct_and_fit_and_the_default_is_first(
    m: int, n: int, k: int, element_bytes: int, seed: int
) -> None:
    gemm = GemmSizes(1, 0, m, n, k, element_bytes)
    found = draw_configurations(gemm, 12, np.random.default_rng(seed))
    assert found[0] == default_configuration(gemm)
    assert len(set(found)) == len(found) == 12
    assert all(fits(one, gemm) for one in found)
    for block, size in ((one.__dict__[f"block_{name}"], gemm.__dict__[name]) for one in found for name in "mnk"):
        assert block < max(2 * size, 17)
        assert block in (16, 32, 64, 128, 256)
    assert found == draw_configurations(gemm, 12, np.random.default_rng(seed))


def test_configurations_that_no_gpu_can_run_are_not_drawn() -> None:
    large = GemmSizes(batch=1, batch_dims=0, m=1024, n=1024, k=1024, element_bytes=4)
    for values in ((128, 128, 32, 1, 5, 4), (256, 128, 16, 1, 1, 8), (16, 16, 64, 16, 1, 4)):
        assert fits(GemmConfiguration(*values), large)
    for values in (
        (128, 128, 64, 1, 4, 4),  # 256 kB of shared memory
        (256, 128, 16, 1, 1, 4),  # 256 sums for each thread
        (16, 16, 128, 16, 1, 4),  # parts of half a block
    ):
        assert not fits(GemmConfiguration(*values), large)


@pytest.mark.parametrize(
    ("subscripts", "left", "right", "expected"),
    [
        ("mk,kn->mn", (8, 16), (16, 32), GemmSizes(1, 0, 8, 32, 16, 4)),
        ("km,nk->mn", (16, 8), (32, 16), GemmSizes(1, 0, 8, 32, 16, 4)),
        ("bmk,bkn->bmn", (3, 8, 16), (3, 16, 32), GemmSizes(3, 1, 8, 32, 16, 4)),
        ("abmk,abnk->abmn", (2, 3, 8, 16), (2, 3, 32, 16), GemmSizes(6, 2, 8, 32, 16, 4)),
        ("amkl,kln->amn", (5, 8, 4, 6), (4, 6, 32), GemmSizes(1, 0, 40, 32, 24, 4)),
    ],
)
def test_sizes_of_a_product(
    gemms_of: GemmsOf, subscripts: str, left: tuple[int, ...], right: tuple[int, ...], expected: GemmSizes
) -> None:
    (gemm,) = gemms_of(lambda x, y: jnp.einsum(subscripts, x, y), left, right).distinct
    found = gemm.sizes
    # jax may put either operand first
    assert found in (expected, dataclasses.replace(expected, m=expected.n, n=expected.m))
    assert found.work == expected.work


def test_products_are_found_once_wherever_they_are(gemms_of: GemmsOf) -> None:
    def steps(x: Any, w: Any) -> Any:
        y, _ = jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=3)
        return (y @ w) @ w[:, :8]

    gemms = gemms_of(steps, (16, 32), (32, 32))
    assert [gemm.sizes.n for gemm in gemms.distinct] == [32, 8]
    assert gemms.repeated == 1
    assert [gemm.name for gemm in gemms.distinct] == [f"program.{gemm.fingerprint[:8]}" for gemm in gemms.distinct]
    # as in files measured earlier
    (gemm,) = gemms_of(lambda x, y: jnp.tanh(x) @ y, (64, 128), (128, 96)).distinct
    assert gemm.fingerprint == "63be92bbca712b19d7237e0dcc6602184673b6eb1db0ad8517ff7f892c334341"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16])
def test_a_module_of_one_product_computes_it(gemms_of: GemmsOf, dtype: Any) -> None:
    (gemm,) = gemms_of(lambda x, y: x @ y, np.zeros((8, 16), dtype), np.zeros((16, 4), dtype)).distinct
    assert gemm.sizes.element_bytes == np.dtype(dtype).itemsize
    operands = gemm.random_operands(np.random.default_rng(0))
    assert [operand.dtype for operand in operands] == [np.dtype(dtype)] * 2
    (output,) = xla.compile_module(gemm.module.SerializeToString()).run(xla.put(operands))
    left, right = (operand.astype(np.float32) for operand in operands)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), left @ right, rtol=2e-2, atol=2e-2)
