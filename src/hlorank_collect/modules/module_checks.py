"""Checks of a module before anything is compiled or allocated for it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank_collect.modules.draw_inputs import ELEMENT_TYPES, TUPLE
from hlorank_collect.program import SkippedError

_COLLECTIVES = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_LARGE = ("convolution", "dot", "gather", "scatter", "sort")  # whose results are in memory as a whole
_TOKEN, _OPAQUE = 17, 14
_OTHER_TYPES = {_TOKEN: "token", _OPAQUE: "opaque", 30: "s1", 31: "u1"}


def _arrays(shape: ShapeProto) -> Iterator[ShapeProto]:
    if shape.element_type == TUPLE:
        for element in shape.tuple_shapes:
            yield from _arrays(element)
    else:
        yield shape


def _entry(module: HloModuleProto) -> tuple[list[HloInstructionProto], HloInstructionProto]:
    """Return the parameters and the root of the entry computation."""
    (entry,) = (one for one in module.computations if one.id == module.entry_computation_id)
    parameters = [one for one in entry.instructions if one.opcode == "parameter"]
    return parameters, next(one for one in entry.instructions if one.id == entry.root_id)


def check_compilable(module: HloModuleProto) -> None:
    """Check that a module is for one device and has fixed sizes.

    Raises:
        SkippedError: an instruction communicates with other devices or has a dynamic dimension; the message names it.
    """
    for computation in module.computations:
        for one in computation.instructions:
            if one.opcode.removesuffix("-start").removesuffix("-done") in _COLLECTIVES:
                raise SkippedError(f"instruction {one.name}: {one.opcode} needs several devices")
            if any(any(array.is_dynamic_dimension) for array in _arrays(one.shape)):
                raise SkippedError(f"instruction {one.name}: {one.opcode} has a dynamic dimension; sizes must be fixed")


def check_measurable(module: HloModuleProto) -> None:
    """Check that a module can run on one device with inputs that are drawn for it.

    Args:
        module: a module that `flatten` accepts, with an entry computation.

    Raises:
        SkippedError: `check_compilable` refuses the module, or a parameter has a type of which no array can be made;
            the message names the instruction.
    """
    check_compilable(module)
    for one in _entry(module)[0]:
        for array in _arrays(one.shape):
            if array.element_type not in ELEMENT_TYPES:
                name = _OTHER_TYPES.get(array.element_type, f"number {array.element_type}")
                raise SkippedError(f"instruction {one.name}: no values can be drawn for a parameter of type {name}")


def _bytes(shape: ShapeProto) -> int:
    known = (array for array in _arrays(shape) if array.element_type in ELEMENT_TYPES)
    return sum(math.prod(array.dimensions) * np.dtype(ELEMENT_TYPES[array.element_type]).itemsize for array in known)


def check_memory(module: HloModuleProto, limit: int) -> None:
    """Check that a module fits into memory, as far as its shapes say.

    Args:
        module: a module that `check_measurable` accepts.
        limit: of memory, in bytes.

    Raises:
        SkippedError: inputs, outputs and the largest other result are larger than `limit`.
    """
    import jax  # noqa: F401 (its types have names in NumPy then)

    parameters, root = _entry(module)
    inputs, outputs = sum(_bytes(one.shape) for one in parameters), _bytes(root.shape)
    everything = (one for computation in module.computations for one in computation.instructions)
    results = [(_bytes(one.shape), one.name) for one in everything if one.opcode in _LARGE and one is not root]
    largest, name = max(results, default=(0, "none"))
    if inputs + outputs + largest > limit:
        sizes = f"inputs {_gigabytes(inputs)}, outputs {_gigabytes(outputs)}, instruction {name} {_gigabytes(largest)}"
        raise SkippedError(f"it is too large for {_gigabytes(limit)} of memory: {sizes}")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
