"""A chosen layout configuration of a module as JSON, with the names of its instructions, and its application."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hlorank.config.section import Section, parse, read_section
from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES
from hlorank.data.graph import Int64
from hlorank.files import DataError, fingerprint
from hlorank.hlo.entry_layouts import entry_layouts
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto
from hlorank.hlo.layout_space import Layouts, constrained, layout_space
from hlorank.hlo.node_features import shape_text
from hlorank.hlo.program import flatten
from hlorank.hlo.program_file import program_file
from hlorank.hlo.reader import read_records
from hlorank.hlo.source_lines import origin_text
from hlorank.hlo.stage import before_layout_assignment, needs_compilation

EXPECTED = "give the .json file that hlorank rank --export wrote; export a file of an earlier version again"
"""Remedy for a file that is no `ModuleConfiguration`."""
_TENSORS = ("output", "operand 0", "operand 1")
_REPEATED = ("dimensions", "slice_dimensions", "dynamic_slice_sizes", "gather_slice_sizes")
_ATTRIBUTES = {
    *_REPEATED,
    *("parameter_number", "tuple_index", "window", "padding_config", "custom_call_target", "comparison_direction"),
    *("convolution_dimension_numbers", "dot_dimension_numbers", "gather_dimension_numbers"),
    *("scatter_dimension_numbers", "feature_group_count", "batch_group_count"),
}


@dataclass(frozen=True)
class NamedLayout:
    """Layout of one tensor of a configurable instruction, which is a node of the graph."""

    computation: str
    instruction: str
    opcode: str
    node: int
    tensor: str
    """`output`, `operand 0` or `operand 1`."""
    shape: str
    """Shape of the tensor, such as `f32[8,128]`."""
    before: list[int] | None
    """Layout in the module, minor to major; None where the compiler has not chosen a layout yet."""
    after: list[int] | None
    """Layout in the configuration, minor to major; None where it is the compiler's choice."""
    origin: str = ""
    """Operation and line of the source that the instruction comes from, such as `jit(f)/dot_general (model.py:12)`."""


class NamedNodes:
    """Named configurable nodes, in the order of `flatten`; if `assigned`, the compiler chose the module's layouts."""

    def __init__(self, module: HloModuleProto, node_ids: Int64, *, assigned: bool = False) -> None:
        program = flatten(module)
        computations = [computation.name for computation in module.computations for _ in computation.instructions]
        position_of = np.argsort(program.node_of)
        self._nodes: list[tuple[int, str, list[HloInstructionProto]]] = [
            (node, computations[position_of[node]], [program.instructions[tensor] for tensor in tensors])
            for node in node_ids.tolist()
            for tensors in [[node, *program.operands[node]][: len(LAYOUT_TENSORS)]]
        ]
        self._assigned, self._module = assigned, module

    def layouts(self, configuration: Layouts, *, changed: bool = False) -> Iterator[list[NamedLayout]]:
        """Yield the layouts of each node's output and operands; `changed` leaves out nodes left to the compiler."""
        for place in np.flatnonzero((configuration >= 0).any(axis=1) | (not changed)).tolist():
            node, computation, instructions = self._nodes[place]
            row: list[list[int]] = configuration[place].reshape(len(LAYOUT_TENSORS), LAYOUT_DIMS).tolist()
            origin = origin_text(self._module, instructions[0])
            yield [
                NamedLayout(
                    computation,
                    instructions[0].name,
                    instructions[0].opcode,
                    node,
                    tensor,
                    shape_text(instruction.shape),
                    [*instruction.shape.layout.minor_to_major] if self._assigned else None,
                    [dim for dim in layout if dim >= 0] or None,
                    origin,
                )
                for tensor, instruction, layout in zip(_TENSORS, instructions, row, strict=False)
            ]

    def changes(self, configuration: Layouts) -> list[NamedLayout]:
        """Return the layouts that a configuration does not leave to the compiler."""
        nodes = self.layouts(configuration, changed=True)
        return [layout for tensors in nodes for layout in tensors if layout.after is not None]


class TensorLayout(Section):
    """Layout of the output or of an operand of an instruction."""

    shape: str
    """Shape of the tensor, such as f32[8,128]."""
    minor_to_major: list[int] | None
    """Its dimensions, the fastest varying first; null leaves the layout to the compiler."""


class InstructionLayouts(Section):
    """Layouts of one instruction, which its node identifies; the names are for the reader."""

    node: int
    computation: str
    instruction: str
    output: TensorLayout
    operands: list[TensorLayout]
    """Layouts of the first two operands."""


class ModuleConfiguration(Section):
    """Layout configuration of one module."""

    version: Literal[3]
    """Version of this format."""
    hlorank: str
    """Version of hlorank that wrote it."""
    module: str
    """Name of the module."""
    fingerprint: str
    """`module_fingerprint` of the module."""
    model: str
    """Model that ranked the configuration, as it was named to hlorank rank."""
    collection: str
    """Collection that the model was trained on."""
    backend: str
    """Backend of the collection, for which the module was compiled; empty where it is not known."""
    rank: int
    """Place of the configuration in the ranking, from 1."""
    score: float
    """Score of the configuration, larger = slower."""
    instructions: list[InstructionLayouts]
    """Instructions with a layout that is not left to the compiler."""


def module_fingerprint(module: HloModuleProto, *, compiled: bool = False) -> str:
    """Return a hash of the instructions, their operands and called computations, and of the entry layouts.

    It is equal for a protobuf and the HLO text of a module, and for each time that a program is compiled: names, which
    XLA numbers differently, and other layouts, values and metadata are not part of it. In modules of the same
    fingerprint, a node is the same instruction. That of a compiled module has all layouts. A broken module is refused
    with DataError.
    """
    program = flatten(module)
    instructions = [
        (node.opcode, shape_text(node.shape), _attributes(node), [*node.shape.layout.minor_to_major] if compiled else 0)
        for node in program.instructions
    ]
    calls = program.edge_index.tolist()  # with the operands
    return fingerprint([instructions, program.operands, calls, entry_layouts(module)])


def _attributes(instruction: HloInstructionProto) -> list[str]:
    """Return what an instruction does beside its opcode, such as the dimensions that a dot contracts."""
    fields = ((field.name, value) for field, value in instruction.ListFields() if field.name in _ATTRIBUTES)
    return [f"{name} {[*value] if name in _REPEATED else value}" for name, value in fields]


def to_configuration(module: HloModuleProto, layouts: Layouts, about: Mapping[str, Any]) -> ModuleConfiguration:
    """Return layouts of a module, as in `layout_space`, with all that `about` says."""
    instructions: list[InstructionLayouts] = []
    for named in NamedNodes(module, layout_space(module).node_ids).layouts(layouts, changed=True):
        output, *operands = (TensorLayout(shape=layout.shape, minor_to_major=layout.after) for layout in named)
        names = {"computation": named[0].computation, "instruction": named[0].instruction}
        instructions.append(InstructionLayouts(node=named[0].node, **names, output=output, operands=operands))
    known = module_fingerprint(module)
    return ModuleConfiguration(version=3, module=module.name, fingerprint=known, instructions=instructions, **about)


def module_layouts(module: HloModuleProto, configuration: ModuleConfiguration) -> Layouts:
    """Return a configuration as the module's layouts, (configurable nodes, 18) int8; DataError if it does not fit."""
    if (known := module_fingerprint(module)) != configuration.fingerprint:
        raise DataError("fingerprint of the module", configuration.fingerprint, f"{known}, another module")
    space = layout_space(module)
    result = space.default
    named = enumerate(NamedNodes(module, space.node_ids).layouts(result))
    places = {layouts[0].node: (position, [layout.shape for layout in layouts]) for position, layouts in named}
    for entry in configuration.instructions:
        place = f"node {entry.node}, instruction {entry.instruction} of the computation {entry.computation}"
        tensors = [entry.output, *entry.operands]
        if entry.node not in places:
            raise DataError(place, f"an instruction to configure in the module {module.name}", "another instruction")
        position, shapes = places[entry.node]
        if (given := [tensor.shape for tensor in tensors]) != shapes:
            raise DataError(f"shapes of {place}", ", ".join(shapes), ", ".join(given))
        row = np.full((len(LAYOUT_TENSORS), LAYOUT_DIMS), -1, dtype=np.int8)
        for number, tensor in enumerate(tensors):
            if (dims := tensor.minor_to_major) is None:
                continue
            if sorted(dims) != [*range(len(dims))] or len(dims) != space.ranks[position, number]:
                expected = f"a permutation of the dimensions of {tensor.shape}"
                raise DataError(f"minor_to_major of {place}", expected, dims)
            row[number, : len(dims)] = dims
        result[position] = row.reshape(LAYOUT_VALUES)
    return result


def apply(module: HloModuleProto, configuration: ModuleConfiguration) -> HloModuleProto:
    """Return a copy of a module with the layouts of a configuration as constraints; errors as of `module_layouts`."""
    return constrained(module, layout_space(module), module_layouts(module, configuration))


def apply_configuration(program: Any, configuration: str | Path | Mapping[str, Any]) -> bytes:
    """Return the module of a program with the layouts of a configuration as constraints, which XLA obeys.

    A module with another fingerprint than the configuration is compiled first, as `hlorank rank` compiles modules.

    Args:
        program: a program in any form of `hlorank.hlo.program_file`.
        configuration: the JSON file that `hlorank rank --export` wrote, or its content.

    Returns:
        A serialized HloModuleProto.

    Raises:
        DataError: the configuration is of another module; or a file cannot be read, or holds several modules.
        ConfigError: `configuration` is a mapping with wrong keys.
    """
    if isinstance(configuration, Mapping):
        chosen = parse(ModuleConfiguration, configuration)
    else:
        chosen = read_section(ModuleConfiguration, Path(configuration), EXPECTED)
    with program_file(program) as path:
        records = [*read_records(path)]
        if len(records) != 1:
            raise DataError("program", "one module", f"{len(records):,}")
        module = records[0].module
        if module_fingerprint(module) != chosen.fingerprint and needs_compilation(path, module, chosen.backend):
            with suppress(DataError):  # `apply` says in what another module differs
                module = before_layout_assignment(module, chosen.backend)
        return apply(module, chosen).SerializeToString()
