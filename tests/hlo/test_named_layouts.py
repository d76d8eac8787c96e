"""Layouts of a configuration by the names of instructions."""

from __future__ import annotations

import numpy as np
import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto, ShapeProto
from hlorank.hlo.layout_space import layout_space
from hlorank.hlo.named_layouts import NamedLayout, NamedNodes, shape_text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (ShapeProto(element_type=11, dimensions=[8, 128]), "f32[8,128]"),
        (ShapeProto(element_type=16, dimensions=[]), "bf16[]"),
        (ShapeProto(element_type=99, dimensions=[2]), "type99[2]"),
        (ShapeProto(element_type=-1, dimensions=[2]), "type-1[2]"),
        (
            ShapeProto(
                element_type=13,
                tuple_shapes=[ShapeProto(element_type=1, dimensions=[2]), ShapeProto(element_type=17)],
            ),
            "(pred[2], token[])",
        ),
    ],
)
def test_shapes_are_written_as_by_xla(shape: ShapeProto, text: str) -> None:
    assert shape_text(shape) == text


def test_changed_layouts_have_the_names_of_the_instruction(dot_and_reshape: HloModuleProto) -> None:
    module = dot_and_reshape
    (computation,) = module.computations
    space = layout_space(module)
    row = space.default.copy()
    row[0, 6:8] = [0, 1]  # first operand of the dot
    row[1, :3] = [1, 2, 0]  # output of the reshape
    own = {one.opcode: one for one in computation.instructions}
    own["reshape"].shape.layout.minor_to_major[:] = [2, 1, 0]
    assert NamedNodes(module, space.node_ids).changes(space.default) == []
    for assigned, before in ((False, None), (True, [2, 1, 0])):
        dot, reshape = NamedNodes(module, space.node_ids, assigned=assigned).changes(row)
        assert (dot.instruction, dot.opcode, dot.node, dot.tensor) == (own["dot"].name, "dot", 2, "operand 0")
        assert dot.after == [0, 1]
        shape = shape_text(own["reshape"].shape)
        assert reshape == NamedLayout(
            computation.name, own["reshape"].name, "reshape", 4, "output", shape, before, [1, 2, 0]
        )


def test_names_follow_nodes_where_the_module_is_not_in_order(dot_and_reshape: HloModuleProto) -> None:
    (computation,) = dot_and_reshape.computations
    for number, one in enumerate(computation.instructions):
        one.name = f"own.{number}"
    expected = {one.name: one.opcode for one in computation.instructions}
    instructions = [*computation.instructions][::-1]
    del computation.instructions[:]
    computation.instructions.extend(instructions)
    space = layout_space(dot_and_reshape)
    layouts = [*NamedNodes(dot_and_reshape, space.node_ids).layouts(space.default)]
    assert {one.instruction: one.opcode for one in layouts} == {
        name: opcode for name, opcode in expected.items() if opcode in ("dot", "reshape")
    }
    assert np.unique([one.node for one in layouts]).tolist() == space.node_ids.tolist()
