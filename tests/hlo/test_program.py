"""Flattening of modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto
from hlorank.hlo.program import flatten


def computation(name: str, number: int, operands: dict[int, list[int]], root: int) -> HloComputationProto:
    """Make a computation of `add` instructions with the given ids and operands."""
    instructions = [HloInstructionProto(opcode="add", id=one, operand_ids=used) for one, used in operands.items()]
    return HloComputationProto(name=name, id=number, root_id=root, instructions=instructions)


def test_computations_are_flattened_in_their_stored_order(module: HloModuleProto) -> None:
    program = flatten(module)
    assert [one.opcode for one in program.instructions] == ["parameter", "parameter", "dot", "call"]
    # The ids 5 of the two computations are different nodes; the dot's repeated operand gives one edge.
    assert program.edge_index.tolist() == [[2, 1], [3, 0], [3, 2]]
    assert program.edge_index.dtype == program.node_splits.dtype == np.int64
    assert program.is_root.tolist() == [True, False, False, True]
    assert program.node_splits.tolist() == [0, 1, 4]
    assert program.node_of.tolist() == [0, 1, 2, 3]
    assert program.operands == [[], [], [1, 1], [2]]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a", "b"], [0, 2]),
        (["a", "my_cond.3"], [0, 2]),
        (["while_body", "b"], [0, 1, 2]),
        (["cluster", "xwhilex"], [0, 1, 2]),
    ],
)
def test_boundaries_follow_the_names_of_computations(names: list[str], splits: list[int]) -> None:
    computations = [computation(name, number, {1: []}, 1) for number, name in enumerate(names)]
    assert flatten(HloModuleProto(computations=computations)).node_splits.tolist() == splits


def test_the_root_need_not_be_the_last_instruction() -> None:
    program = flatten(HloModuleProto(computations=[computation("a", 1, {1: [], 2: [1]}, 1)]))
    assert program.is_root.tolist() == [True, False]


def test_instructions_move_only_just_behind_their_operands() -> None:
    # Stored: 30 uses 20, which comes later; 10 and 40 are in places where they may remain.
    stored = computation("a", 1, {10: [], 30: [10, 20], 20: [], 40: [30]}, 40)
    program = flatten(HloModuleProto(computations=[stored]))
    assert [one.id for one in program.instructions] == [10, 20, 30, 40]
    assert program.node_of.tolist() == [0, 2, 1, 3]
    assert program.edge_index.tolist() == [[2, 0], [2, 1], [3, 2]]
    assert program.operands == [[], [], [0, 1], [2]]
    assert program.is_root.tolist() == [False, False, False, True]


def test_computations_move_behind_those_they_call_and_remain_contiguous() -> None:
    caller = computation("main", 1, {1: [], 2: [1], 3: [2]}, 3)
    caller.instructions[1].called_computation_ids.append(9)
    callee = computation("while", 9, {1: [], 2: [1]}, 2)
    program = flatten(HloModuleProto(computations=[caller, callee]))
    assert program.node_of.tolist() == [2, 3, 4, 0, 1]
    assert program.edge_index.tolist() == [[1, 0], [3, 1], [3, 2], [4, 3]]
    assert program.node_splits.tolist() == [0, 2, 5]
    assert program.is_root.tolist() == [False, True, False, False, True]


def test_every_stored_order_gives_a_valid_graph_of_the_same_program(module: HloModuleProto) -> None:
    module.computations.append(computation("more", 3, {1: [], 2: [], 3: [2, 1]}, 3))
    module.computations[1].instructions[1].called_computation_ids.append(3)
    for order in itertools.permutations(range(3)):
        shuffled = HloModuleProto(computations=[module.computations[one] for one in order])
        for one in shuffled.computations:
            backwards = list(one.instructions)[::-1]
            del one.instructions[:]
            one.instructions.extend(backwards)
        program = flatten(shuffled)
        assert (program.edge_index[:, 0] > program.edge_index[:, 1]).all()
        assert len(program.edge_index) == 6
        pairs = [(program.instructions[u].opcode, program.instructions[v].opcode) for u, v in program.edge_index]
        expected = ["add add", "add add", "call dot", "call parameter", "dot add", "dot parameter"]
        assert sorted(map(" ".join, pairs)) == expected


BROKEN: list[tuple[Callable[[HloModuleProto], object], str]] = [
    (lambda m: m.computations[1].instructions[1].operand_ids.append(77), "[1].instructions[1].operand_ids"),
    (lambda m: m.computations[0].instructions[0].operand_ids.append(9), "[0].instructions[0].operand_ids"),
    (lambda m: m.computations[1].instructions[0].called_computation_ids.append(99), "[0].called_computation_ids"),
    (lambda m: m.computations[1].instructions[1].operand_ids.append(9), "[1].instructions[1]"),  # a cycle
    (lambda m: m.computations[1].instructions[0].operand_ids.append(9), "[1].instructions["),
    (lambda m: m.computations[0].instructions[0].called_computation_ids.append(8), "computations["),
    (lambda m: setattr(m.computations[1], "root_id", 0), "[1].root_id"),
    (lambda m: setattr(m.computations[1].instructions[1], "id", 5), "[1].instructions"),
    (lambda m: setattr(m.computations[1], "id", 7), "[1].id"),
    (lambda m: m.computations.add(name="empty"), "[2].instructions"),
    (lambda m: m.ClearField("computations"), "computations"),
    (lambda m: m.computations[1].instructions[2].ClearField("opcode"), "[1].instructions[2].opcode"),
]


@pytest.mark.parametrize(("change", "key"), BROKEN)
def test_broken_modules_are_refused_with_the_field(
    change: Callable[[HloModuleProto], object], key: str, module: HloModuleProto
) -> None:
    change(module)
    with pytest.raises(DataError) as caught:
        flatten(module)
    assert key in caught.value.key


def test_a_long_chain_in_reverse_order_needs_no_recursion() -> None:
    count = 20_000
    operands = {one: [one + 1] if one + 1 < count else [] for one in range(count)}
    program = flatten(HloModuleProto(computations=[computation("a", 1, operands, 0)]))
    np.testing.assert_array_equal(program.node_of, np.arange(count)[::-1])


@pytest.mark.parametrize(("limit", "key"), [("MAX_NODES", "instructions"), ("MAX_EDGES", "operand_ids")])
def test_nodes_and_operands_are_counted_first(
    module: HloModuleProto, monkeypatch: pytest.MonkeyPatch, limit: str, key: str
) -> None:
    monkeypatch.setattr(f"hlorank.hlo.program.{limit}", 4)
    flatten(module)
    monkeypatch.setattr(f"hlorank.hlo.program.{limit}", 3)
    with pytest.raises(DataError, match=f"{key}: "):
        flatten(module)


@pytest.mark.parametrize("field", ["shape", "window", "padding_config"])
def test_dimensions_beyond_those_of_programs_are_refused(module: HloModuleProto, field: str) -> None:
    dimensions: Any = getattr(module.computations[1].instructions[1], field).dimensions
    for _ in range(1001):
        dimensions.append(1) if field == "shape" else dimensions.add()
    with pytest.raises(DataError, match=r"computations\[1\].instructions\[1\]: .*at most 1000"):
        flatten(module)
