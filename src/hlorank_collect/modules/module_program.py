"""Programs in files, HLO protobufs, HLO text and StableHLO: what can be measured, and example inputs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.files import DataError, file_name
from hlorank.hlo.entry_layouts import entry_layouts
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.node_features import element_type
from hlorank.hlo.program import flatten
from hlorank.hlo.reader import graph_name, read_records
from hlorank_collect import xla
from hlorank_collect.machine import memory_limit
from hlorank_collect.modules.dataflow import Dataflow, Demand, Value, demands, leaves
from hlorank_collect.program import ELEMENT_TYPES, Program, SkippedError, Traced, normal

_KEYS = (2, 4)  # words of a key of random numbers
_U32 = 8
_COLLECTIVES = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_LARGE = ("convolution", "dot", "gather", "scatter", "sort")  # whose results are in memory as a whole


def prepare(module: HloModuleProto) -> None:
    """Remove what a module says about donated inputs: an input that is donated can be run once only."""
    if all(computation.id != module.entry_computation_id for computation in module.computations):
        raise DataError("entry_computation_id", "the id of a computation", module.entry_computation_id)
    module.ClearField("input_output_alias")
    module.ClearField("buffer_donor")


def _entry(module: HloModuleProto) -> tuple[list[HloInstructionProto], HloInstructionProto]:
    """Return the parameters and the root of the entry computation."""
    (entry,) = (computation for computation in module.computations if computation.id == module.entry_computation_id)
    parameters = [instruction for instruction in entry.instructions if instruction.opcode == "parameter"]
    return parameters, next(instruction for instruction in entry.instructions if instruction.id == entry.root_id)


def check_compilable(module: HloModuleProto) -> None:
    """Raise SkippedError for an instruction that communicates with other devices or has a dynamic dimension."""
    for computation in module.computations:
        for instruction in computation.instructions:
            opcode, name = instruction.opcode, f"instruction {instruction.name}: {instruction.opcode}"
            if opcode.removesuffix("-start").removesuffix("-done") in _COLLECTIVES:
                raise SkippedError(f"{name} needs several devices")
            if any(any(array.is_dynamic_dimension) for _, array in leaves(instruction.shape)):
                raise SkippedError(f"{name} has a dynamic dimension; sizes must be fixed")


def check_measurable(module: HloModuleProto) -> None:
    """Raise SkippedError if `check_compilable` does, or for a parameter of a type of which no array can be made."""
    check_compilable(module)
    for parameter in _entry(module)[0]:
        for _, array in leaves(parameter.shape):
            if array.element_type not in ELEMENT_TYPES:
                why = f"no values can be drawn for a parameter of type {element_type(array)}"
                raise SkippedError(f"instruction {parameter.name}: {why}")


def _bytes(shape: ShapeProto) -> int:
    known = (array for _, array in leaves(shape) if array.element_type in ELEMENT_TYPES)
    return sum(math.prod(array.dimensions) * np.dtype(ELEMENT_TYPES[array.element_type]).itemsize for array in known)


def check_memory(module: HloModuleProto, limit: int) -> None:
    """Raise SkippedError if inputs, outputs and the largest other result are larger than `limit` bytes."""
    import jax  # noqa: F401 (its types have names in NumPy then)

    parameters, root = _entry(module)
    inputs, outputs = sum(_bytes(parameter.shape) for parameter in parameters), _bytes(root.shape)
    nodes = (node for computation in module.computations for node in computation.instructions)
    results = [(_bytes(node.shape), node.name) for node in nodes if node.opcode in _LARGE and node is not root]
    largest, name = max(results, default=(0, "none"))
    if inputs + outputs + largest > limit:
        sizes = (
            f"inputs {inputs / 1e9:.1f} GB, outputs {outputs / 1e9:.1f} GB, instruction {name} {largest / 1e9:.1f} GB"
        )
        raise SkippedError(f"it is too large for {limit / 1e9:.1f} GB of memory: {sizes}")


def draw(shape: ShapeProto, demand: Demand, rng: np.random.Generator) -> NDArray[Any]:
    """Return an array: normal floats, small integers or integers that index, booleans, or words of a key."""
    name, size = ELEMENT_TYPES[shape.element_type], tuple(shape.dimensions)
    if "float" in name or "complex" in name:
        return normal(name, size, rng, positive=demand.positive)
    if shape.element_type == _U32 and demand.bound is None and size and size[-1] in _KEYS:
        return rng.integers(0, 2**32, size, dtype=np.uint32)
    bound = 2 if demand.bound is None else demand.bound
    if name != "bool":
        bound = min(bound, 2 ** (int(name.lstrip("uint")) - 1))
    return rng.integers(demand.positive, bound + demand.positive, size).astype(name)


def draw_inputs(module: HloModuleProto, seed: int) -> Iterator[NDArray[Any]]:
    """Draw the inputs of a module, each array and element of a tuple on its own, by the number of the parameter.

    Floats are normal, or their absolute values where a root or a logarithm is taken. Integers that index are uniform in
    the smallest dimension that they index; u32 keys of random numbers are any; other integers and booleans are 0 or 1.
    """
    import jax  # noqa: F401 (its types have names in NumPy then)

    flow = Dataflow(module)
    needed = demands(flow)
    for number, node in enumerate(flow.entry):
        rng = np.random.default_rng([seed, number])
        for value, shape in leaves(flow.nodes[node].shape, Value(node)):
            yield draw(shape, needed.get(value, Demand()), rng)


@dataclass(frozen=True)
class ModuleProgram(Program):
    """A module in a file, whose inputs are drawn."""

    path: Path
    """File in any form that `hlorank.hlo.reader.read_records` reads, with one module."""
    seed: int
    """Seed of the inputs."""

    def trace(self, platform: xla.Platform) -> Traced:
        """Read and check the module; raise DataError if the file cannot be read, or does not have one module."""
        module = self._read()
        if platform in xla.TPUS:  # estimated: nothing runs here
            check_compilable(module)
        else:
            check_measurable(module)
            check_memory(module, memory_limit())

        def inputs() -> list[Any]:
            drawn = zip(
                draw_inputs(module, self.seed), chain(entry_layouts(module).parameters, repeat(())), strict=False
            )
            return [array for leaf, order in drawn for array in self.put([leaf], platform, [order])]

        return Traced(module.SerializeToString(deterministic=True), inputs)

    def _read(self) -> HloModuleProto:
        records = [*islice(read_records(self.path), 2)]
        if len(records) > 1:
            raise DataError("modules", "one module, to be measured", "several", file=self.path)
        (record,) = records
        try:
            flatten(record.module)
        except DataError as error:
            raise DataError(record.place + error.key, error.expected, error.found, file=self.path) from None
        prepare(record.module)
        return record.module

    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return `tuple`: the outputs are flat."""
        return tuple


def module_program(path: Path, seed: int = 0) -> ModuleProgram:
    """Return the program in a file, which is not read yet; its family is its name up to the first dot."""
    name = file_name(graph_name(path)).strip(".") or "module"
    return ModuleProgram(name, name.split(".")[0], path, seed, wide=True)
