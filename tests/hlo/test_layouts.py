"""The space of layouts, modules with layouts as constraints, searches, and configurations as JSON."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hlorank
from hlorank.config import ConfigError
from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.files import DataError, write_json
from hlorank.hlo import layout_json, node_features
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.layout_json import NamedLayout
from hlorank.hlo.layout_space import SEARCHES, Layouts, LayoutSpace, configuration_name, constrained, layout_space

ABOUT: dict[str, Any] = {"hlorank": "0.1.0", "model": "m", "collection": "layout:cpu:random"}
ABOUT |= {"backend": "cpu", "rank": 1, "score": -0.5}


@pytest.fixture
def module(dot_and_reshape: HloModuleProto) -> HloModuleProto:
    return dot_and_reshape


@pytest.fixture
def layouts(module: HloModuleProto) -> Layouts:
    """First operand of the dot, and output of the reshape."""
    return chosen(module, {(0, 1): [0, 1], (1, 0): [1, 2, 0]})


def chosen(module: HloModuleProto, layouts: dict[tuple[int, int], list[int]]) -> Layouts:
    """Return a configuration of the tensors of nodes: 0 the output, 1 and 2 operands."""
    configuration = layout_space(module).default
    for (node, tensor), dims in layouts.items():
        configuration[node, tensor * LAYOUT_DIMS : tensor * LAYOUT_DIMS + len(dims)] = dims
    return configuration


def by_id(module: HloModuleProto) -> dict[int, HloInstructionProto]:
    (computation,) = module.computations
    return {one.id: one for one in computation.instructions}


def test_the_space_has_the_tensors_of_dots_and_reshapes(module: HloModuleProto) -> None:
    space = layout_space(module)
    assert space.node_ids.tolist() == [2, 4]
    assert space.ranks.tolist() == [[2, 2, 2], [3, 2, 0]]
    assert [*space.slots()] == [(0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 3), (1, 1, 2)]
    assert space.size == 3 * 3 * 3 * 7 * 3
    assert space.default.tolist() == [[-1] * 18] * 2
    # Scalars and too many dimensions leave nothing to choose.
    instructions = module.computations[0].instructions
    instructions[0].shape.dimensions[:] = [1] * 7  # an operand of the dot
    instructions[3].shape.dimensions[:] = []  # the operand of the reshape
    assert layout_space(module).ranks.tolist() == [[2, 0, 2], [3, 0, 0]]
    instructions[4].shape.dimensions[:] = [1] * 7
    assert layout_space(module).ranks.tolist() == [[2, 0, 2]]
    instructions[2].opcode = "tanh"
    with pytest.raises(NothingToConfigureError, match="convolution"):
        layout_space(module)


def test_calls_are_between_a_node_and_its_users(module: HloModuleProto) -> None:
    space = layout_space(module)
    assert constrained(module, space, space.default) == module
    before = module.SerializeToString(deterministic=True)
    result = constrained(module, space, chosen(module, {(0, 0): [0, 1], (0, 2): [1, 0], (1, 0): [0, 2, 1]}))
    assert module.SerializeToString(deterministic=True) == before
    (computation,) = result.computations
    assert [one.opcode for one in computation.instructions] == [
        "parameter", "transpose", "custom-call", "dot", "custom-call", "tanh", "reshape", "custom-call"
    ]  # fmt: skip
    kernel, output, root = (one for one in computation.instructions if one.opcode == "custom-call")
    found = by_id(result)
    assert len(found) == 8
    assert [*kernel.operand_ids, *found[12].operand_ids] == [11, 10, kernel.id]
    assert [*output.operand_ids, *found[13].operand_ids] == [12, output.id]
    assert computation.root_id == root.id
    for call, dims, shape in ((kernel, [1, 0], [6, 4]), (output, [0, 1], [4, 4]), (root, [0, 2, 1], [2, 2, 4])):
        assert (call.custom_call_target, call.constrain_layout) == ("LayoutConstraint", True)
        assert call.custom_call_api_version == 1
        assert [*call.shape.layout.minor_to_major] == dims
        assert [*call.shape.dimensions] == shape
        assert [*call.operand_shapes_with_layout] == [call.shape]
    assert [*found[12].shape.layout.minor_to_major] == [1, 0]  # left to the compiler


def test_one_tensor_used_twice_has_a_layout_for_each_use(module: HloModuleProto) -> None:
    module.computations[0].instructions[2].operand_ids[:] = [10, 10]
    found = by_id(constrained(module, layout_space(module), chosen(module, {(0, 1): [0, 1], (0, 2): [1, 0]})))
    calls = [found[operand] for operand in found[12].operand_ids]
    assert [[*call.operand_ids] for call in calls] == [[10], [10]]
    assert [[*call.shape.layout.minor_to_major] for call in calls] == [[0, 1], [1, 0]]


@pytest.mark.parametrize("values", [[0, 0], [0], [1, 2], [0, 1, 2], [-1, 0, 1, -1, -1, 5], [-1, 0, 1], [0, -1, 1]])
def test_layouts_that_are_no_permutation_are_refused(module: HloModuleProto, values: list[int]) -> None:
    space = layout_space(module)
    with pytest.raises(DataError, match="node_config_feat of node 2, input"):
        constrained(module, space, chosen(module, {(0, 1): values}))
    with pytest.raises(DataError, match=r"\(2, 18\).*\(3, 18\)"):
        constrained(module, space, np.full((3, 18), -1, np.int8))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_layout_has_one_call_and_comes_back_from_json(module: HloModuleProto, data: st.DataObject) -> None:
    space = layout_space(module)
    wanted = {
        (node, tensor): data.draw(st.permutations(range(rank)))
        for node, tensor, rank in space.slots()
        if data.draw(st.booleans())
    }
    configuration = chosen(module, wanted)
    result = constrained(module, space, configuration)
    calls = [one for one in by_id(result).values() if one.opcode == "custom-call"]
    assert sorted([*one.shape.layout.minor_to_major] for one in calls) == sorted(wanted.values())
    seen: set[int] = set()
    for one in result.computations[0].instructions:
        assert seen.issuperset(one.operand_ids)  # operands before users
        seen.add(one.id)
    assert layout_space(result).ranks.shape == (2, 3)
    saved = layout_json.ModuleConfiguration.model_validate_json(json.dumps(content(module, configuration)))
    np.testing.assert_array_equal(layout_json.module_layouts(module, saved), configuration)
    assert layout_json.apply(module, saved) == result
    assert (configuration_name(configuration) == configuration_name(space.default)) == (not wanted)


@pytest.fixture
def space() -> LayoutSpace:
    """Twenty nodes with three matrices each."""
    return LayoutSpace(np.arange(20), np.full((20, 3), 2))


def configured(layouts: Layouts) -> Any:
    """Return the number of nodes that each configuration configures."""
    return np.asarray((layouts >= 0).any(axis=2).sum(axis=1), np.float64)


def unmeasured(batch: Layouts) -> Any:
    raise AssertionError("the search random measures nothing")


@pytest.mark.parametrize("name", SEARCHES)
def test_configurations_are_valid_distinct_and_begin_with_the_default(space: LayoutSpace, name: str) -> None:
    rows = SEARCHES[name](space, 60, np.random.default_rng(0), configured)
    assert rows.shape == (60, 20, 18)
    assert rows.dtype == np.int8
    assert (rows[0] == -1).all()
    assert len(np.unique(rows, axis=0)) == 60
    for row in rows:
        space.check(row)
    np.testing.assert_array_equal(SEARCHES[name](space, 60, np.random.default_rng(0), configured), rows)
    assert (SEARCHES[name](space, 60, np.random.default_rng(1), configured) != rows).any()
    for ranks, size in ([2, 0, 0], 3), ([1, 0, 0], 1):  # small spaces are exhausted
        small = LayoutSpace(np.array([3]), np.array([ranks]))
        assert len(SEARCHES[name](small, 40, np.random.default_rng(0), configured)) == small.size == size


def test_random_changes_few_nodes_as_often_as_many(space: LayoutSpace) -> None:
    changed = configured(SEARCHES["random"](space, 400, np.random.default_rng(0), unmeasured))[1:]
    # Log-uniform between 1/20 and 1: half of the probabilities are below 0.22, which is 4.5 nodes.
    assert 0.35 < np.mean(changed <= 4) < 0.65
    assert changed.max() >= 18


def test_searches_measure_generations_once_and_breed_the_fastest(space: LayoutSpace) -> None:
    batches: list[Layouts] = []

    def faster_where_configured(batch: Layouts) -> Any:
        batches.append(batch)
        return -configured(batch)

    many = SEARCHES["default"](space, 50, np.random.default_rng(0), faster_where_configured)
    np.testing.assert_array_equal(np.concatenate(batches), many[: len(np.concatenate(batches))])
    assert [len(batch) for batch in batches] == [1, *[8] * 6]
    few = SEARCHES["default"](space, 50, np.random.default_rng(0), configured)
    assert configured(few)[-10:].mean() + 2 < configured(many)[-10:].mean()
    batches.clear()
    rows = SEARCHES["models"](space, 50, np.random.default_rng(0), faster_where_configured)
    np.testing.assert_array_equal(rows[:25], SEARCHES["random"](space, 25, np.random.default_rng(0), unmeasured))
    assert [len(batch) for batch in batches] == [25, *[8] * 3]
    assert configured(rows[25:]).mean() > 2 * configured(rows[:25]).mean()


def content(module: HloModuleProto, layouts: Layouts) -> dict[str, Any]:
    return layout_json.to_configuration(module, layouts, ABOUT).model_dump(mode="json")


def test_the_file_names_instructions_shapes_and_layouts(module: HloModuleProto, layouts: Layouts) -> None:
    operands = [{"shape": "f32[4,6]", "minor_to_major": [0, 1]}, {"shape": "f32[6,4]", "minor_to_major": None}]
    square = {"shape": "f32[4,4]", "minor_to_major": None}
    dot = {"node": 2, "computation": "main", "instruction": "dot.12", "output": square, "operands": operands}
    output = {"shape": "f32[2,2,4]", "minor_to_major": [1, 2, 0]}
    reshape = {"node": 4, "computation": "main", "instruction": "reshape.14", "output": output, "operands": [square]}
    assert content(module, layouts) == {
        **ABOUT,
        "version": 3,
        "module": "m",
        "fingerprint": layout_json.module_fingerprint(module),
        "instructions": [dot, reshape],
    }


def test_names_numbers_metadata_and_layouts_change_no_fingerprint(module: HloModuleProto) -> None:
    before = layout_json.module_fingerprint(module)
    other = copy.deepcopy(module)
    other.id = 7
    (computation,) = other.computations
    computation.id += 3
    computation.root_id += 100
    for one in computation.instructions:
        one.id += 100
        one.name = f"other.{one.id}"
        one.operand_ids[:] = [operand + 100 for operand in one.operand_ids]
        one.metadata.SetInParent()
        one.shape.layout.minor_to_major[:] = range(len(one.shape.dimensions))
    assert layout_json.module_fingerprint(other) == before
    for change in (HloInstructionProto(opcode="tanh"), HloInstructionProto(operand_ids=[110])):
        changed = copy.deepcopy(other)
        changed.computations[0].instructions[1].MergeFrom(change)
        assert layout_json.module_fingerprint(changed) != before
    computation.instructions[2].operand_ids[0] = 1
    with pytest.raises(DataError):
        layout_json.module_fingerprint(other)


def test_layouts_land_on_the_same_instructions_under_other_names(module: HloModuleProto, layouts: Layouts) -> None:
    main = module.computations[0]
    other_dot = main.instructions.add()  # of the same shape as the first one
    other_dot.CopyFrom(main.instructions[2])
    other_dot.id, other_dot.name = 99, "dot.99"
    layouts = np.vstack([layouts, layout_space(module).default[:1]])
    saved = content(module, layouts)
    expected = layout_json.apply(module, layout_json.ModuleConfiguration.model_validate(saved))
    for names in (["dot.99", "dot.12"], ["dot.12", "dot.12"]):
        for instructions in (main.instructions, expected.computations[0].instructions):
            dots = [one for one in instructions if one.opcode == "dot"]
            for one, name in zip(dots, names, strict=True):
                one.name = name
        assert hlorank.apply_configuration(module.SerializeToString(), saved) == expected.SerializeToString()


def test_files_are_applied_to_their_module_only(module: HloModuleProto, layouts: Layouts, tmp_path: Path) -> None:
    write_json(tmp_path / "own.json", content(module, layouts))
    expected = layout_json.apply(module, layout_json.to_configuration(module, layouts, ABOUT)).SerializeToString()
    assert hlorank.apply_configuration(module.SerializeToString(), tmp_path / "own.json") == expected
    (tmp_path / "own.pb").write_bytes(module.SerializeToString())
    assert hlorank.apply_configuration(tmp_path / "own.pb", content(module, layouts)) == expected
    module.computations[0].instructions[3].opcode = "exponential"
    with pytest.raises(DataError, match="fingerprint"):
        hlorank.apply_configuration(module.SerializeToString(), tmp_path / "own.json")


@pytest.mark.parametrize(
    ("entry", "value"),
    [("node", 3), ("node", -1), ("operands", []), *[("output", dims) for dims in ([0, 0], [0], [1, 2], [2, 1, 0])]],
)
def test_an_entry_that_was_changed_is_refused(entry: str, value: Any, module: HloModuleProto, layouts: Layouts) -> None:
    wrong = content(module, layouts)
    instruction = wrong["instructions"][0]
    instruction[entry] = {**instruction["output"], "minor_to_major": value} if entry == "output" else value
    with pytest.raises(DataError, match=r"dot\.12"):
        hlorank.apply_configuration(module.SerializeToString(), wrong)


def test_wrong_files_are_refused(module: HloModuleProto, layouts: Layouts, tmp_path: Path) -> None:
    wrong = content(module, layouts) | {"version": 1}
    write_json(tmp_path / "wrong.json", wrong)
    for configuration, match in ((wrong, "version=1"), ("wrong.json", "version=1"), ("missing.json", "missing")):
        given, error = (tmp_path / configuration, DataError) if isinstance(configuration, str) else (wrong, ConfigError)
        with pytest.raises(error, match=match):
            hlorank.apply_configuration(module.SerializeToString(), given)


def test_shapes_are_written_as_by_xla() -> None:
    parts = [
        ShapeProto(element_type=11, dimensions=[8, 128]),
        ShapeProto(element_type=16),
        ShapeProto(element_type=99, dimensions=[2]),
        ShapeProto(element_type=-1, dimensions=[2]),
        ShapeProto(element_type=13, tuple_shapes=[ShapeProto(element_type=17)]),
    ]
    whole = ShapeProto(element_type=13, tuple_shapes=parts)
    assert node_features.shape_text(whole) == "(f32[8,128], bf16[], type99[2], type-1[2], (token[]))"


def test_changed_layouts_have_the_names_of_the_instruction(module: HloModuleProto, layouts: Layouts) -> None:
    (computation,) = module.computations
    space = layout_space(module)
    own = {one.opcode: one for one in computation.instructions}
    own["reshape"].shape.layout.minor_to_major[:] = [2, 1, 0]
    assert layout_json.NamedNodes(module, space.node_ids).changes(space.default) == []
    stored = [[*computation.instructions], [*computation.instructions][::-1]]  # also where they are not in order
    for instructions in stored:
        del computation.instructions[:]
        computation.instructions.extend(instructions)
        for assigned, before in ((False, None), (True, [2, 1, 0])):
            dot, reshape = layout_json.NamedNodes(module, space.node_ids, assigned=assigned).changes(layouts)
            named = (dot.instruction, dot.opcode, dot.node, dot.tensor, dot.after)
            assert named == ("dot.12", "dot", 2, "operand 0", [0, 1])
            assert reshape == NamedLayout("main", "reshape.14", "reshape", 4, "output", "f32[2,2,4]", before, [1, 2, 0])
