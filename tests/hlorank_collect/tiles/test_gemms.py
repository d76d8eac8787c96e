from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlorank.hlo.program import flatten
from hlorank_collect import xla
from hlorank_collect.tiles.triton_gemm import GemmSizes

from .conftest import GemmsOf


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
    assert all(gemm.module.name == gemm.name for gemm in gemms.distinct)


def test_fingerprints_are_those_of_files_measured_earlier(gemms_of: GemmsOf) -> None:
    (gemm,) = gemms_of(lambda x, y: jnp.tanh(x) @ y, (64, 128), (128, 96)).distinct
    assert gemm.fingerprint == "63be92bbca712b19d7237e0dcc6602184673b6eb1db0ad8517ff7f892c334341"


def test_unsupported_products_have_a_reason(gemms_of: GemmsOf) -> None:
    integers, booleans = np.zeros((16, 16), np.int32), np.zeros((16, 16), bool)
    gemms = gemms_of(lambda x, v, i, b: (x @ v, i @ i, v @ v, b @ b), (16, 16), (16,), integers, booleans)
    assert gemms.left_out == {"no matrix product": 2, "element type": 2}
    assert not gemms.distinct


def test_operands_become_parameters(gemms_of: GemmsOf) -> None:
    gemms = gemms_of(lambda x: (x @ x) @ np.ones((16, 16), np.float32), (16, 16))
    (gemm,) = gemms.distinct  # constants and both sides of an operand are parameters
    assert gemms.repeated == 1
    instructions = flatten(gemm.module).instructions
    assert [instruction.opcode for instruction in instructions] == ["parameter", "parameter", "dot"]
    assert [instruction.parameter_number for instruction in instructions[:2]] == [0, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16])
def test_a_module_of_one_product_computes_it(gemms_of: GemmsOf, dtype: Any) -> None:
    (gemm,) = gemms_of(lambda x, y: x @ y, np.zeros((8, 16), dtype), np.zeros((16, 4), dtype)).distinct
    assert gemm.sizes.element_bytes == np.dtype(dtype).itemsize
    operands = gemm.random_operands(np.random.default_rng(0))
    assert [operand.dtype for operand in operands] == [np.dtype(dtype)] * 2
    (output,) = xla.compile_module(gemm.module.SerializeToString()).run(xla.put(operands))
    left, right = (operand.astype(np.float32) for operand in operands)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), left @ right, rtol=2e-2, atol=2e-2)
