"""Example inputs of a module, drawn for the shapes of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloModuleProto, ShapeProto
from hlorank_collect.modules.dataflow import Dataflow, Value
from hlorank_collect.modules.demands import Demand, demands

ELEMENT_TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4", 23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 26: "int2", 27: "uint2", 28: "float8_e4m3", 29: "float8_e3m4",
    32: "float4_e2m1fn", 33: "float8_e8m0fnu",
}  # fmt: skip
"""Names of the element types that arrays can have, by xla.PrimitiveType; those not of NumPy are jax's."""
TUPLE = 13
_SCALE = 0.1  # small enough for deep programs to stay finite
_PERIOD = 1_000_003  # floats that are drawn; a large array repeats them, as drawing takes longer than running. A prime
_KEYS = (2, 4)  # words of a key of random numbers
_U32 = 8
_UNSIGNED_FLOATS = ("float8_e8m0fnu",)


def leaves(shape: ShapeProto, value: Value) -> Iterator[tuple[Value, ShapeProto]]:
    """Yield the arrays of a value, which may be a tuple, in the order in which XLA flattens it."""
    if shape.element_type != TUPLE:
        yield value, shape
        return
    for index, element in enumerate(shape.tuple_shapes):
        yield from leaves(element, Value(value.node, (*value.path, index)))


def draw(shape: ShapeProto, demand: Demand, rng: np.random.Generator) -> NDArray[Any]:
    """Return an array: normal floats, small integers or integers that index, booleans, or words of a key.

    Args:
        shape: element type and dimensions.
        demand: what the program needs of the elements.
        rng: draws the elements.
    """
    name, size = ELEMENT_TYPES[shape.element_type], tuple(shape.dimensions)
    if "float" in name or "complex" in name:
        count = min(math.prod(size), _PERIOD)
        values: NDArray[Any] = _SCALE * rng.standard_normal(count)
        if demand.positive or name in _UNSIGNED_FLOATS:
            values = np.abs(values)
        if "complex" in name:
            values = values + _SCALE * 1j * rng.standard_normal(count)
        return np.resize(values.astype(name), size)
    if shape.element_type == _U32 and demand.bound is None and size and size[-1] in _KEYS:
        return rng.integers(0, 2**32, size, dtype=np.uint32)
    bound = 2 if demand.bound is None else demand.bound
    if name != "bool":
        bound = min(bound, 2 ** (int(name.lstrip("uint")) - 1))
    return rng.integers(demand.positive, bound + demand.positive, size).astype(name)


def draw_inputs(module: HloModuleProto, seed: int) -> Iterator[NDArray[Any]]:
    """Draw the inputs of a module, one after the other: each may be large.

    Floats are normal with standard deviation 0.1, or their absolute values where a root or a logarithm of them is
    taken; those of a large array repeat. Integers that index are uniform in the smallest dimension that they index;
    u32 arrays of keys of random numbers are any; other integers and booleans are 0 or 1.

    Args:
        module: its parameters have types of ELEMENT_TYPES, or are tuples of these.
        seed: of the draw; the values of a parameter depend on its number only.

    Yields:
        One array for each parameter of the entry computation, in their order; the elements of tuples one by one.
    """
    import jax  # noqa: F401 (its types have names in NumPy then)

    flow = Dataflow(module)
    needed = demands(flow)
    for number, node in enumerate(flow.entry):
        rng = np.random.default_rng([seed, number])
        for value, shape in leaves(flow.nodes[node].shape, Value(node)):
            yield draw(shape, needed.get(value, Demand()), rng)
