from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlorank.hlo.program import flatten
from hlorank_collect import xla
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.triton.gemm import Gemm, random_operands

from .conftest import GemmsOf


@pytest.mark.parametrize(
    ("subscripts", "left", "right", "expected"),
    [
        ("mk,kn->mn", (8, 16), (16, 32), Gemm(1, 0, 8, 32, 16, 4)),
        ("km,nk->mn", (16, 8), (32, 16), Gemm(1, 0, 8, 32, 16, 4)),
        ("bmk,bkn->bmn", (3, 8, 16), (3, 16, 32), Gemm(3, 1, 8, 32, 16, 4)),
        ("abmk,abnk->abmn", (2, 3, 8, 16), (2, 3, 32, 16), Gemm(6, 2, 8, 32, 16, 4)),
        ("amkl,kln->amn", (5, 8, 4, 6), (4, 6, 32), Gemm(1, 0, 40, 32, 24, 4)),
    ],
)
def test_sizes_of_a_product(
    gemms_of: GemmsOf, subscripts: str, left: tuple[int, ...], right: tuple[int, ...], expected: Gemm
) -> None:
    (kernel,) = gemms_of(lambda x, y: jnp.einsum(subscripts, x, y), left, right).kernels
    found = Gemm.of(kernel.body)
    # jax may put either operand first
    assert found in (expected, dataclasses.replace(expected, m=expected.n, n=expected.m))
    assert found.work == expected.work


def test_products_are_found_once_wherever_they_are(gemms_of: GemmsOf) -> None:
    def steps(x: Any, w: Any) -> Any:
        y, _ = jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=3)
        return (y @ w) @ w[:, :8]

    found = gemms_of(steps, (16, 32), (32, 32))
    assert [Gemm.of(kernel.body).n for kernel in found.kernels] == [32, 8]
    assert found.repeated == 1
    assert [kernel.name for kernel in found.kernels] == [f"program.{one.fingerprint[:8]}" for one in found.kernels]
    assert all(kernel.module.name == kernel.name and kernel.body.kind == "dot" for kernel in found.kernels)


def test_unsupported_products_have_a_reason(gemms_of: GemmsOf) -> None:
    integers = np.zeros((16, 16), np.int32)
    found = gemms_of(lambda x, v, i: (x @ v, i @ i, v @ v), (16, 16), (16,), integers)
    assert found.left_out == {"no matrix product": 2, "element type": 1}
    assert not found.kernels


def test_operands_become_parameters(gemms_of: GemmsOf) -> None:
    found = gemms_of(lambda x: (x @ x) @ np.ones((16, 16), np.float32), (16, 16))
    (kernel,) = found.kernels  # constants and both sides of an operand are parameters
    assert found.repeated == 1
    assert [one.opcode for one in flatten(kernel.module).instructions] == ["parameter", "parameter", "dot"]
    assert [one.parameter_number for one in kernel.body.parameters] == [0, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16])
def test_a_module_of_one_product_computes_it(gemms_of: GemmsOf, dtype: Any) -> None:
    (kernel,) = gemms_of(lambda x, y: x @ y, np.zeros((8, 16), dtype), np.zeros((16, 4), dtype)).kernels
    assert Gemm.of(kernel.body).element_bytes == np.dtype(dtype).itemsize
    operands = random_operands(kernel.body, np.random.default_rng(0))
    assert [one.dtype for one in operands] == [np.dtype(dtype)] * 2
    (output,) = xla.compile_module(kernel.module.SerializeToString()).run(xla.put(operands))
    left, right = (one.astype(np.float32) for one in operands)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), left @ right, rtol=2e-2, atol=2e-2)


def test_other_element_types_are_refused(gemm: Kernel) -> None:
    body = gemm.body
    body.instructions[body.root].shape.element_type = 12  # f64
    try:
        with pytest.raises(UnsupportedKernelError, match="element type"):
            Gemm.of(body)
    finally:
        body.instructions[body.root].shape.element_type = 11
