"""Layouts of a configuration by the names of the instructions, as XLA writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_TENSORS, Int64
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.layout_space import Layouts
from hlorank.hlo.node_features import element_type
from hlorank.hlo.program import flatten


def shape_text(shape: ShapeProto) -> str:
    """Return a shape as XLA writes it, without its layout, such as `f32[8,128]`."""
    if shape.tuple_shapes:
        return f"({', '.join(map(shape_text, shape.tuple_shapes))})"
    return f"{element_type(shape)}[{','.join(map(str, shape.dimensions))}]"


@dataclass(frozen=True)
class NamedLayout:
    """Layout of one tensor of a configurable instruction.

    Attributes:
        computation: name of the computation.
        instruction: name of the instruction.
        opcode: its opcode.
        node: its node in the graph.
        tensor: `output`, `operand 0` or `operand 1`.
        shape: shape of the tensor, such as `f32[8,128]`.
        before: layout in the module, minor to major; None where the compiler has not chosen one yet.
        after: layout in the configuration, minor to major; None where it is the compiler's choice.
    """

    computation: str
    instruction: str
    opcode: str
    node: int
    tensor: str
    shape: str
    before: list[int] | None
    after: list[int] | None


_TENSORS = ("output", "operand 0", "operand 1")


class NamedNodes:
    """Configurable nodes of a module.

    Args:
        module: the module.
        node_ids: (configurable nodes,) the nodes, as `flatten` orders them.
        assigned: the layouts in the module are those that the compiler chose; before layout assignment they are not.

    Raises:
        DataError: the module is broken.
    """

    def __init__(self, module: HloModuleProto, node_ids: Int64, *, assigned: bool = False) -> None:
        program = flatten(module)
        computations = [one.name for one in module.computations for _ in one.instructions]
        position_of = np.argsort(program.node_of)
        self._nodes: list[tuple[int, str, list[HloInstructionProto]]] = [
            (node, computations[position_of[node]], [program.instructions[one] for one in tensors])
            for node in node_ids.tolist()
            for tensors in [[node, *program.operands[node]][: len(LAYOUT_TENSORS)]]
        ]
        self._assigned = assigned

    def layouts(self, configuration: Layouts) -> Iterator[NamedLayout]:
        """Yield the layout of each tensor of each configurable node.

        Args:
            configuration: (configurable nodes, 18).
        """
        rows: Sequence[list[list[int]]] = configuration.reshape(-1, len(LAYOUT_TENSORS), LAYOUT_DIMS).tolist()
        for (node, computation, instructions), row in zip(self._nodes, rows, strict=True):
            own = instructions[0]
            for tensor, instruction, layout in zip(_TENSORS, instructions, row, strict=False):
                yield NamedLayout(
                    computation,
                    own.name,
                    own.opcode,
                    node,
                    tensor,
                    shape_text(instruction.shape),
                    [*instruction.shape.layout.minor_to_major] if self._assigned else None,
                    [dim for dim in layout if dim >= 0] or None,
                )

    def changes(self, configuration: Layouts) -> list[NamedLayout]:
        """Return the layouts that a configuration does not leave to the compiler."""
        return [layout for layout in self.layouts(configuration) if layout.after is not None]
