"""Layout configurations as JSON: exact, and refused for another module."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlorank
from hlorank.config import ConfigError
from hlorank.files import DataError, write_json
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.layout_json import (
    ModuleConfiguration,
    NamedLayout,
    NamedNodes,
    apply,
    module_fingerprint,
    module_layouts,
    shape_text,
    to_configuration,
)
from hlorank.hlo.layout_search import random
from hlorank.hlo.layout_space import Layouts, constrained, layout_space

ABOUT = {"hlorank": "0.1.0", "model": "m", "collection": "layout:cpu:random", "rank": 1, "score": -0.5}


@pytest.fixture
def module(dot_and_reshape: HloModuleProto) -> HloModuleProto:
    return dot_and_reshape


@pytest.fixture
def layouts(module: HloModuleProto) -> Layouts:
    """First operand of the dot, and output of the reshape."""
    chosen = layout_space(module).default
    chosen[0, 6:8] = [0, 1]
    chosen[1, :3] = [1, 2, 0]
    return chosen


def content(module: HloModuleProto, layouts: Layouts) -> dict[str, Any]:
    return to_configuration(module, layouts, ABOUT).model_dump(mode="json")


def test_the_file_names_instructions_shapes_and_layouts(module: HloModuleProto, layouts: Layouts) -> None:
    assert content(module, layouts) == {
        **ABOUT,
        "version": 2,
        "module": "m",
        "fingerprint": module_fingerprint(module),
        "instructions": [
            {
                "node": 2,
                "computation": "main",
                "instruction": "dot.12",
                "output": {"shape": "f32[4,4]", "minor_to_major": None},
                "operands": [
                    {"shape": "f32[4,6]", "minor_to_major": [0, 1]},
                    {"shape": "f32[6,4]", "minor_to_major": None},
                ],
            },
            {
                "node": 4,
                "computation": "main",
                "instruction": "reshape.14",
                "output": {"shape": "f32[2,2,4]", "minor_to_major": [1, 2, 0]},
                "operands": [{"shape": "f32[4,4]", "minor_to_major": None}],
            },
        ],
    }


def test_every_configuration_comes_back(module: HloModuleProto) -> None:
    space = layout_space(module)
    drawn = random(space, 60, np.random.default_rng(0), lambda rows: np.zeros(len(rows)))
    for one in drawn:
        saved = ModuleConfiguration.model_validate_json(json.dumps(content(module, one)))
        np.testing.assert_array_equal(module_layouts(module, saved), one)
        assert apply(module, saved) == constrained(module, space, one)


def test_names_numbers_metadata_and_layouts_change_no_fingerprint(module: HloModuleProto) -> None:
    before = module_fingerprint(module)
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
    assert module_fingerprint(other) == before
    for change in (HloInstructionProto(opcode="tanh"), HloInstructionProto(operand_ids=[110])):
        changed = copy.deepcopy(other)
        changed.computations[0].instructions[1].MergeFrom(change)
        assert module_fingerprint(changed) != before
    computation.instructions[2].operand_ids[0] = 1
    with pytest.raises(DataError):
        module_fingerprint(other)


def reshaped(module: HloModuleProto) -> None:
    module.computations[0].instructions[2].shape.dimensions[:] = [4, 5]


def changed_elsewhere(module: HloModuleProto) -> None:
    module.computations[0].instructions[3].opcode = "exponential"


@pytest.mark.parametrize("change", [reshaped, changed_elsewhere])
def test_another_module_is_refused(
    change: Callable[[HloModuleProto], None], module: HloModuleProto, layouts: Layouts, tmp_path: Path
) -> None:
    write_json(tmp_path / "own.json", content(module, layouts))
    expected = apply(module, to_configuration(module, layouts, ABOUT)).SerializeToString()
    assert hlorank.apply_configuration(module.SerializeToString(), tmp_path / "own.json") == expected
    (tmp_path / "own.pb").write_bytes(module.SerializeToString())
    assert hlorank.apply_configuration(tmp_path / "own.pb", content(module, layouts)) == expected
    change(module)
    with pytest.raises(DataError, match="fingerprint"):
        hlorank.apply_configuration(module.SerializeToString(), tmp_path / "own.json")


@pytest.mark.parametrize(
    ("entry", "value"),
    [("node", 3), ("node", -1), ("operands", []), *[("output", dims) for dims in ([0, 0], [0], [1, 2], [2, 1, 0])]],
)
def test_an_entry_that_was_changed_is_refused(entry: str, value: Any, module: HloModuleProto, layouts: Layouts) -> None:
    wrong = content(module, layouts)
    instruction = wrong["instructions"][0]
    if entry == "output":
        instruction["output"]["minor_to_major"] = value
    else:
        instruction[entry] = value
    with pytest.raises(DataError, match=r"dot\.12"):
        hlorank.apply_configuration(module.SerializeToString(), wrong)


def test_wrong_files_are_refused(module: HloModuleProto, layouts: Layouts, tmp_path: Path) -> None:
    wrong = content(module, layouts) | {"version": 1}
    with pytest.raises(ConfigError, match="version=1"):
        hlorank.apply_configuration(module.SerializeToString(), wrong)
    write_json(tmp_path / "wrong.json", wrong)
    with pytest.raises(DataError, match="version=1"):
        hlorank.apply_configuration(module.SerializeToString(), tmp_path / "wrong.json")
    with pytest.raises(DataError):
        hlorank.apply_configuration(module.SerializeToString(), tmp_path / "missing.json")


def test_layouts_land_on_the_same_instructions_under_other_names(module: HloModuleProto, layouts: Layouts) -> None:
    main = module.computations[0]
    other_dot = main.instructions.add()  # of the same shape as the first one
    other_dot.CopyFrom(main.instructions[2])
    other_dot.id, other_dot.name = 99, "dot.99"
    layouts = np.vstack([layouts, layout_space(module).default[:1]])
    saved = content(module, layouts)
    expected = apply(module, ModuleConfiguration.model_validate(saved))
    for names in (["dot.99", "dot.12"], ["dot.12", "dot.12"]):
        for instructions in (main.instructions, expected.computations[0].instructions):
            dots = [one for one in instructions if one.opcode == "dot"]
            for one, name in zip(dots, names, strict=True):
                one.name = name
        assert hlorank.apply_configuration(module.SerializeToString(), saved) == expected.SerializeToString()


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
    named = NamedNodes(dot_and_reshape, space.node_ids).layouts(space.default)
    layouts = [layout for tensors in named for layout in tensors]
    assert {one.instruction: one.opcode for one in layouts} == {
        name: opcode for name, opcode in expected.items() if opcode in ("dot", "reshape")
    }
    assert np.unique([one.node for one in layouts]).tolist() == space.node_ids.tolist()
