"""A layout configuration of a module as JSON, by the nodes of the instructions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from hlorank.config.section import Section
from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES
from hlorank.files import DataError, fingerprint
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Layouts, constrained, layout_space
from hlorank.hlo.named_layouts import NamedLayout, NamedNodes, shape_text
from hlorank.hlo.program import flatten

EXPECTED = "give the .json file that hlorank rank --export wrote; export one of an earlier version again"


class _Strict(Section):
    model_config = ConfigDict(coerce_numbers_to_str=False)


class TensorLayout(_Strict):
    """Layout of the output or of an operand of an instruction."""

    shape: str
    """Shape of the tensor, such as f32[8,128]."""
    minor_to_major: list[int] | None
    """Its dimensions, the fastest varying first; null leaves the layout to the compiler."""


class InstructionLayouts(_Strict):
    """Layouts of one instruction."""

    node: int
    """Node of the instruction in the graph of the module, by which its layouts are applied."""
    computation: str
    """Name of the computation of the instruction, for the reader."""
    instruction: str
    """Name of the instruction, for the reader."""
    output: TensorLayout
    """Layout of the output."""
    operands: list[TensorLayout]
    """Layouts of the first two operands."""


class ModuleConfiguration(_Strict):
    """Layout configuration of one module."""

    version: Literal[2]
    """Version of this format."""
    hlorank: str
    """Version of hlorank that wrote it."""
    module: str
    """Name of the module."""
    fingerprint: str
    """That of the module: `module_fingerprint`."""
    model: str
    """Model that ranked the configuration, as it was named to hlorank rank."""
    collection: str
    """Collection that the model was trained on."""
    rank: int
    """Place of the configuration in the ranking, from 1."""
    score: float
    """Score of the configuration, larger = slower."""
    instructions: list[InstructionLayouts]
    """Instructions with a layout that is not left to the compiler."""


def module_fingerprint(module: HloModuleProto) -> str:
    """Return a hash of the opcodes, shapes, operands and called computations of all instructions.

    It is equal for a protobuf and the HLO text of a module, and for each time that a program is compiled: names, which
    XLA numbers differently, and layouts, values and metadata are not part of it. In modules of the same fingerprint, a
    node is the same instruction.

    Raises:
        DataError: the module is broken.
    """
    program = flatten(module)
    return fingerprint(
        [
            [(one.opcode, shape_text(one.shape)) for one in program.instructions],
            program.operands,
            program.edge_index.tolist(),  # with the calls
        ]
    )


def instruction_layouts(module: HloModuleProto, configuration: Layouts) -> list[InstructionLayouts]:
    """Return the layouts of the instructions that a configuration does not leave to the compiler.

    Args:
        module: the module.
        configuration: (configurable nodes, 18) int8, the nodes as in `layout_space`.

    Raises:
        DataError: the module is broken.
    """

    def tensor(layout: NamedLayout) -> TensorLayout:
        return TensorLayout(shape=layout.shape, minor_to_major=layout.after)

    found: list[InstructionLayouts] = []
    layouts = NamedNodes(module, layout_space(module).node_ids).layouts(configuration)
    for node, tensors in groupby(layouts, key=lambda layout: layout.node):
        output, *operands = tensors
        if any(layout.after is not None for layout in (output, *operands)):
            found.append(
                InstructionLayouts(
                    node=node,
                    computation=output.computation,
                    instruction=output.instruction,
                    output=tensor(output),
                    operands=[tensor(operand) for operand in operands],
                )
            )
    return found


def module_layouts(module: HloModuleProto, configuration: ModuleConfiguration) -> Layouts:
    """Return a configuration as layouts of a module.

    Returns:
        (configurable nodes, 18) int8, the nodes as in `layout_space`.

    Raises:
        DataError: the configuration is that of another module; an entry was changed to a node that is not configurable
            or has other shapes, or to a layout that is not a permutation of its dimensions; or the module is broken.
    """
    if (own := module_fingerprint(module)) != configuration.fingerprint:
        raise DataError("fingerprint of the module", configuration.fingerprint, f"{own}, another module")
    space = layout_space(module)
    result = space.default
    position_of = {node: position for position, node in enumerate(space.node_ids.tolist())}
    layouts = NamedNodes(module, space.node_ids).layouts(result)
    shapes_of = {
        node: [layout.shape for layout in tensors] for node, tensors in groupby(layouts, key=lambda layout: layout.node)
    }
    for one in configuration.instructions:
        place = f"node {one.node}, instruction {one.instruction} of the computation {one.computation}"
        tensors = [one.output, *one.operands]
        if (shapes := shapes_of.get(one.node)) is None:
            raise DataError(place, f"an instruction to configure in the module {module.name}", "another one")
        if (given := [tensor.shape for tensor in tensors]) != shapes:
            raise DataError(f"shapes of {place}", ", ".join(shapes), ", ".join(given))
        position = position_of[one.node]
        row = np.full((len(LAYOUT_TENSORS), LAYOUT_DIMS), -1, dtype=np.int8)
        for number, tensor in enumerate(tensors):
            dims = tensor.minor_to_major
            if dims is None:
                continue
            if sorted(dims) != [*range(len(dims))] or len(dims) != space.ranks[position, number]:
                raise DataError(
                    f"minor_to_major of {place}", f"a permutation of the dimensions of {tensor.shape}", dims
                )
            row[number, : len(dims)] = dims
        result[position] = row.reshape(LAYOUT_VALUES)
    return result


def apply(module: HloModuleProto, configuration: ModuleConfiguration) -> HloModuleProto:
    """Return a copy of a module with the layouts of a configuration as constraints; errors as of `module_layouts`."""
    return constrained(module, layout_space(module), module_layouts(module, configuration))


def to_configuration(module: HloModuleProto, layouts: Layouts, about: Mapping[str, Any]) -> ModuleConfiguration:
    """Return layouts of a module as a configuration.

    Args:
        module: the module.
        layouts: (configurable nodes, 18) int8.
        about: `hlorank`, `model`, `collection`, `rank` and `score`.

    Raises:
        DataError: the module is broken.
    """
    return ModuleConfiguration(
        version=2,
        module=module.name,
        fingerprint=module_fingerprint(module),
        instructions=instruction_layouts(module, layouts),
        **about,
    )
