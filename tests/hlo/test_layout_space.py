from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.files import DataError
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto
from hlorank.hlo.layout_space import (
    Layouts,
    configuration_name,
    constrained,
    layout_space,
)


@pytest.fixture
def module(dot_and_reshape: HloModuleProto) -> HloModuleProto:
    return dot_and_reshape


def layout(*dims: int) -> list[int]:
    return [*dims, *[-1] * (LAYOUT_DIMS - len(dims))]


def by_id(module: HloModuleProto) -> dict[int, HloInstructionProto]:
    (computation,) = module.computations
    return {one.id: one for one in computation.instructions}


def test_the_space_has_the_tensors_of_dots_and_reshapes(module: HloModuleProto) -> None:
    space = layout_space(module)
    assert space.node_ids.tolist() == [2, 4]
    assert space.ranks.tolist() == [[2, 2, 2], [3, 2, 0]]
    assert [*space.slots()] == [(0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 3), (1, 1, 2)]
    assert space.size == 3 * 3 * 3 * 7 * 3
    assert space.default.shape == (2, 18)
    assert (space.default == -1).all()


def test_scalars_and_too_many_dimensions_leave_nothing_to_choose(module: HloModuleProto) -> None:
    instructions = module.computations[0].instructions
    instructions[0].shape.dimensions[:] = [1] * 7  # an operand of the dot
    instructions[3].shape.dimensions[:] = []  # the operand of the reshape
    assert layout_space(module).ranks.tolist() == [[2, 0, 2], [3, 0, 0]]
    instructions[4].shape.dimensions[:] = [1] * 7
    assert layout_space(module).ranks.tolist() == [[2, 0, 2]]


def test_a_module_without_configurable_nodes_is_refused(module: HloModuleProto) -> None:
    for one in module.computations[0].instructions:
        one.opcode = "tanh"
    with pytest.raises(NothingToConfigureError, match="convolution"):
        layout_space(module)


def test_calls_are_between_a_node_and_its_users(module: HloModuleProto) -> None:
    space = layout_space(module)
    assert constrained(module, space, space.default) == module
    before = module.SerializeToString(deterministic=True)
    configuration = space.default
    configuration[0] = [*layout(0, 1), *layout(), *layout(1, 0)]
    configuration[1] = [*layout(0, 2, 1), *layout(), *layout()]
    result = constrained(module, space, configuration)
    assert module.SerializeToString(deterministic=True) == before
    (computation,) = result.computations
    assert [one.opcode for one in computation.instructions] == [
        "parameter", "transpose", "custom-call", "dot", "custom-call", "tanh", "reshape", "custom-call"
    ]  # fmt: skip
    kernel, output, root = (one for one in computation.instructions if one.opcode == "custom-call")
    found = by_id(result)
    assert len(found) == 8
    assert [*kernel.operand_ids] == [11]
    assert [*found[12].operand_ids] == [10, kernel.id]
    assert [*output.operand_ids] == [12]
    assert [*found[13].operand_ids] == [output.id]
    assert computation.root_id == root.id
    for call, dims, shape in ((kernel, [1, 0], [6, 4]), (output, [0, 1], [4, 4]), (root, [0, 2, 1], [2, 2, 4])):
        assert call.custom_call_target == "LayoutConstraint"
        assert call.constrain_layout
        assert call.custom_call_api_version == 1
        assert [*call.shape.layout.minor_to_major] == dims
        assert [*call.shape.dimensions] == shape
        assert [*call.operand_shapes_with_layout] == [call.shape]
    assert [*found[12].shape.layout.minor_to_major] == [1, 0]  # left to the compiler


def test_one_tensor_used_twice_has_a_layout_for_each_use(module: HloModuleProto) -> None:
    module.computations[0].instructions[2].operand_ids[:] = [10, 10]
    space = layout_space(module)
    configuration = space.default
    configuration[0] = [*layout(), *layout(0, 1), *layout(1, 0)]
    found = by_id(constrained(module, space, configuration))
    first, second = found[12].operand_ids
    assert [*found[first].operand_ids] == [*found[second].operand_ids] == [10]
    assert [*found[first].shape.layout.minor_to_major] == [0, 1]
    assert [*found[second].shape.layout.minor_to_major] == [1, 0]


@pytest.mark.parametrize("values", [layout(0, 0), layout(0), layout(1, 2), layout(0, 1, 2), [-1, 0, 1, -1, -1, 5]])
def test_layouts_that_are_no_permutation_are_refused(module: HloModuleProto, values: list[int]) -> None:
    space = layout_space(module)
    configuration = space.default
    configuration[0, LAYOUT_DIMS : 2 * LAYOUT_DIMS] = values
    with pytest.raises(DataError, match="node_config_feat of node 2, input"):
        constrained(module, space, configuration)
    with pytest.raises(DataError, match=r"\(2, 18\).*\(3, 18\)"):
        constrained(module, space, np.full((3, 18), -1, np.int8))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_there_is_one_call_for_each_layout(module: HloModuleProto, data: st.DataObject) -> None:
    space = layout_space(module)
    configuration: Layouts = space.default
    wanted = []
    for node, tensor, rank in space.slots():
        if data.draw(st.booleans()):
            dims = data.draw(st.permutations(range(rank)))
            configuration[node, tensor * LAYOUT_DIMS : tensor * LAYOUT_DIMS + rank] = dims
            wanted.append(tuple(dims))
    result = constrained(module, space, configuration)
    calls = [one for one in by_id(result).values() if one.opcode == "custom-call"]
    assert sorted(tuple(one.shape.layout.minor_to_major) for one in calls) == sorted(wanted)
    seen: set[int] = set()
    for one in result.computations[0].instructions:
        assert seen.issuperset(one.operand_ids)  # operands before users
        seen.add(one.id)
    assert len(layout_space(result).node_ids) == 2
    assert math.prod(layout_space(result).ranks.shape) == 6


def test_different_configurations_have_different_names(module: HloModuleProto) -> None:
    space = layout_space(module)
    other = space.default
    other[1, :3] = [2, 1, 0]
    assert configuration_name(space.default) == configuration_name(space.default.copy()) != configuration_name(other)
