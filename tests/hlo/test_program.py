"""Modules as graphs: flattening, and official features of nodes."""

import csv
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, WindowDimension
from hlorank.hlo.node_features import COLUMNS, OPCODES
from hlorank.hlo.program import flatten

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attack.modules import (  # of the folder of the benchmarks
    fast_graph,
    generated_module,
    plain_graph,
)  # fmt: skip


def computation(name: str, number: int, operands: dict[int, list[int]], root: int) -> HloComputationProto:
    """Make a computation of `add` instructions with the given ids and operands."""
    instructions = [HloInstructionProto(opcode="add", id=one, operand_ids=used) for one, used in operands.items()]
    return HloComputationProto(name=name, id=number, root_id=root, instructions=instructions)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 150))
def test_nodes_edges_and_features_are_those_of_the_reference(seed: int, nodes: int) -> None:
    data = generated_module(nodes, seed).SerializeToString()
    fast, plain = fast_graph(data), plain_graph(data)
    for key in ("node_feat", "node_opcode", "edge_index", "node_splits"):
        np.testing.assert_array_equal(getattr(fast, key), getattr(plain, key), strict=True)


def test_the_opcodes_are_the_official_ones(shared_data: Path) -> None:
    with (shared_data / "opcodes.csv").open(encoding="utf-8") as file:
        assert {row["opcode"]: int(row["id"]) for row in csv.DictReader(file)} == OPCODES


def test_the_reference_lists_the_columns() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "hlo-features.md"
    listed = re.findall(r"^\| (\d+)(?:-(\d+))? \| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, int(first), int(last or first) + 1) for first, last, name in listed] == [
        (columns.name, columns.start, columns.stop) for columns in COLUMNS.values()
    ]


def test_instructions_move_only_just_behind_their_operands() -> None:
    # Stored: 30 uses 20, which comes later; 10 and 40 are in places where they may remain.
    stored = computation("a", 1, {10: [], 30: [10, 20, 10], 20: [], 40: [30]}, 30)
    program = flatten(HloModuleProto(computations=[stored]))
    assert [one.id for one in program.instructions] == [10, 20, 30, 40]
    assert program.node_of.tolist() == [0, 2, 1, 3]
    assert program.edge_index.tolist() == [[2, 0], [2, 1], [3, 2]]
    assert program.operands == [[], [], [0, 1, 0], [2]]
    assert program.is_root.tolist() == [False, False, True, False]


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
        pairs = [(program.instructions[u].opcode, program.instructions[v].opcode) for u, v in program.edge_index]
        expected = ["add add", "add add", "call dot", "call parameter", "dot add", "dot parameter"]
        assert sorted(map(" ".join, pairs)) == expected


def test_a_long_chain_in_reverse_order_needs_no_recursion() -> None:
    count = 20_000
    operands = {one: [one + 1] if one + 1 < count else [] for one in range(count)}
    program = flatten(HloModuleProto(computations=[computation("a", 1, operands, 0)]))
    np.testing.assert_array_equal(program.node_of, np.arange(count)[::-1])


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
    (lambda m: m.computations[1].instructions[1].shape.dimensions.extend([1] * 1000), "[1].instructions[1]"),
    (lambda m: m.computations[1].instructions[1].shape.dimensions.append(-1), "[1].instructions[1]"),
    (lambda m: m.computations[1].instructions[1].window.dimensions.extend([WindowDimension()] * 1001), "tions[1]"),
    (lambda m: m.computations[0].instructions[0].operand_ids.extend([1] * 5), "operand_ids"),  # the limit is 8
    (lambda m: m.computations[1].instructions.extend([HloInstructionProto()] * 5), "instructions"),
]


@pytest.mark.parametrize(("change", "key"), BROKEN)
def test_broken_and_too_large_modules_are_refused_with_the_field(
    change: Callable[[HloModuleProto], object], key: str, module: HloModuleProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_NODES", "MAX_EDGES"):
        monkeypatch.setattr(f"hlorank.hlo.program.{limit}", 8)
    flatten(module)
    change(module)
    with pytest.raises(DataError) as caught:
        flatten(module)
    assert key in caught.value.key
