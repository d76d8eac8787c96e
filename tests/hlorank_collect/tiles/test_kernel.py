from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.program import flatten
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError, body_of
from hlorank_collect.tiles.nest import Nest

from .conftest import HarvestOf


def layers(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w + 1) @ v + 1).sum(0)


def test_each_kind_is_found_once(harvest_of: HarvestOf) -> None:
    found = harvest_of(layers, (32, 64), (64, 64), (64, 64))
    kinds = [kernel.body.kind for kernel in found.kernels]
    assert kinds.count("dot") == 1  # the second product has the structure of the first
    assert found.repeated >= 1
    assert {"loop", "reduction"} <= set(kinds)
    names = [kernel.name for kernel in found.kernels]
    assert all(name == f"program.{kernel.fingerprint[:8]}" for name, kernel in zip(names, found.kernels, strict=True))
    assert len(set(names)) == len(names)


def test_kernels_of_other_shapes_are_different(harvest_of: HarvestOf) -> None:
    one, other = (harvest_of(lambda x: jnp.tanh(x) + 1, shape).kernels[0] for shape in ((32, 64), (64, 32)))
    assert one.fingerprint != other.fingerprint


def test_the_fingerprint_does_not_depend_on_names_ids_or_order(harvest_of: HarvestOf) -> None:
    (kernel,) = harvest_of(lambda x, y: jnp.tanh(x) * y - x, (32, 64), (32, 64)).kernels
    module = HloModuleProto.FromString(kernel.module.SerializeToString())
    for computation in module.computations:
        for one in computation.instructions:
            one.name += "x"
            one.id += 1000
            one.operand_ids[:] = [operand + 1000 for operand in one.operand_ids]
        computation.root_id += 1000
        parameters = [one for one in computation.instructions if one.opcode == "parameter"]
        others = [one for one in computation.instructions if one.opcode != "parameter"]
        del computation.instructions[:]
        computation.instructions.extend([*parameters[::-1], *others])
    assert body_of(module).fingerprint() == kernel.fingerprint
    operation = next(one for one in module.computations[0].instructions if one.opcode == "subtract")
    operation.opcode = "add"
    assert body_of(module).fingerprint() != kernel.fingerprint


def test_the_module_is_a_graph_with_its_fusion(harvest_of: HarvestOf) -> None:
    (kernel,) = harvest_of(lambda x, y: jnp.tanh(x) * y, (32, 64), (32, 64)).kernels
    opcodes = [one.opcode for one in flatten(kernel.module).instructions]
    assert opcodes.count("fusion") == 1
    assert kernel.module.computations[-1].id == kernel.module.entry_computation_id
    assert not any(one.opcode == "fusion" for one in kernel.body.instructions.values())


def test_constants_remain_constants(harvest_of: HarvestOf) -> None:
    (kernel,) = harvest_of(lambda x: x.max(0), (20, 24)).kernels
    assert kernel.body.kind == "reduction"
    assert [list(one.shape.dimensions) for one in kernel.body.parameters] == [[20, 24]]
    (init,) = (one for one in kernel.body.instructions.values() if one.opcode == "constant")
    assert list(init.literal.f32s) == [-np.inf]


def test_unsupported_kernels_have_a_reason(harvest_of: HarvestOf) -> None:
    found = harvest_of(lambda x: (jnp.linalg.cholesky(x), jnp.sort(x)), (32, 32))
    assert found.left_out["custom call"] == 1
    assert harvest_of(lambda x: x * 2, np.zeros((32, 32), jnp.bfloat16)).left_out["element type"] >= 1
    kernel = next(one for one in found.kernels if "sort" in str(one.module))
    with pytest.raises(UnsupportedKernelError, match="sort"):
        Nest(kernel.body)


def test_kernel_named_after_its_program(dot: Kernel) -> None:
    assert dot.module.name == dot.name
    assert dot.body.kind == "dot"
