"""Small modules that several tests of this folder start from."""

from __future__ import annotations

import pytest

from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto


@pytest.fixture
def module() -> HloModuleProto:
    """A parameter of (4, 6), its product with itself transposed, and a reshape of it, which is the root."""
    module = HloModuleProto(name="m")
    computation = module.computations.add(name="main", id=7, root_id=14)
    shapes = {10: ("parameter", [], [4, 6]), 11: ("transpose", [10], [6, 4]), 12: ("dot", [10, 11], [4, 4])}
    shapes[13] = ("tanh", [12], [4, 4])
    shapes[14] = ("reshape", [13], [2, 2, 4])
    for number, (opcode, operands, dimensions) in shapes.items():
        one = HloInstructionProto(name=f"{opcode}.{number}", opcode=opcode, id=number, operand_ids=operands)
        one.shape.element_type = 11
        one.shape.dimensions.extend(dimensions)
        one.shape.layout.minor_to_major.extend(reversed(range(len(dimensions))))
        computation.instructions.append(one)
    return module
