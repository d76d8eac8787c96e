"""Result of a kernel as XLA computes it, which every tile must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto
from hlorank_collect.tiles.kernel import Body, as_module, dtype_of

Values = NDArray[Any]

# Operations that are defined for positive numbers only, or lose all digits near 0.
_NARROW = {"sqrt", "rsqrt", "cbrt", "log", "log-plus-one", "power", "divide"}
_INTEGERS = 100


def random_inputs(body: Body, rng: np.random.Generator) -> list[Values]:
    """Draw values of a kernel's parameters, as logical arrays.

    Floats are normal, or uniform in 0.5 to 1.5 where the kernel takes a root, logarithm, power or quotient; whole
    numbers, which may be indices of a table, are uniform below 100.
    """
    positive = any(one.opcode in _NARROW for one in body.instructions.values())
    values: list[Values] = []
    for parameter in body.parameters:
        dims, dtype = tuple(parameter.shape.dimensions), dtype_of(parameter.shape)
        if dtype == np.bool_:
            values.append(rng.random(dims) < 0.5)
        elif dtype == np.float32:
            values.append(np.asarray(rng.uniform(0.5, 1.5, dims) if positive else rng.normal(size=dims), dtype))
        else:
            values.append(rng.integers(0, _INTEGERS, dims).astype(dtype))
    return values


def evaluate(body: Body, values: list[Values]) -> Values:
    """Compute the result of a kernel with XLA.

    Raises:
        RuntimeError: XLA rejects the kernel.
    """
    from hlorank_collect import xla

    (output,) = xla.compile_module(_compilable(body).SerializeToString()).run(xla.put(values))
    return np.asarray(output)


def _compilable(body: Body) -> HloModuleProto:
    """Return a module with reshapes and transposes in place of bitcasts, which depend on layouts."""
    entry = HloComputationProto(name="kernel", id=max(body.regions, default=0) + 1, root_id=body.root)
    numbers = {parameter.id: number for number, parameter in enumerate(body.parameters)}
    next_id = max(body.instructions) + 1
    for one in body.instructions.values():
        if one.opcode == "bitcast":
            steps = _bitcast_steps(body, one, next_id)
            entry.instructions.extend(steps)
            next_id += len(steps)
        else:
            copy = entry.instructions.add()
            copy.CopyFrom(one)
            copy.parameter_number = numbers.get(one.id, 0)
    called = [id_ for one in body.instructions.values() for id_ in one.called_computation_ids]
    return as_module("kernel", [*(body.regions[id_] for id_ in dict.fromkeys(called)), entry])


def _bitcast_steps(body: Body, bitcast: HloInstructionProto, next_id: int) -> list[HloInstructionProto]:
    """Transpose to the operand's memory order, reshape to the result's, and transpose to the result's logical order."""
    (operand,) = body.operands(bitcast)
    major_first = operand.shape.layout.minor_to_major[::-1]
    result_first = bitcast.shape.layout.minor_to_major[::-1]
    back = np.argsort(result_first).tolist()
    steps: tuple[tuple[str, Sequence[int], Sequence[int]], ...] = (
        ("transpose", [operand.shape.dimensions[dim] for dim in major_first], major_first),
        ("reshape", [bitcast.shape.dimensions[dim] for dim in result_first], []),
        ("transpose", bitcast.shape.dimensions, back),
    )
    made: list[HloInstructionProto] = []
    for number, (opcode, dims, order) in enumerate(steps):
        shape = ShapeProto(element_type=bitcast.shape.element_type, dimensions=dims)
        shape.layout.minor_to_major.extend(range(len(dims))[::-1])
        made.append(
            HloInstructionProto(
                name=f"{opcode}.{next_id + number}",
                opcode=opcode,
                shape=shape,
                dimensions=order,
                id=bitcast.id if number == len(steps) - 1 else next_id + number,
                operand_ids=[made[-1].id if made else operand.id],
            )
        )
    return made
