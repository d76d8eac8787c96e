"""Stages of modules, by the names that XLA gives to dumps and by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.stage import TRAINED, Stage, stage_of

PLAIN = Path("own.pb")


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("module_0001.jit_f.before_optimizations.txt", "before_optimizations"),
        ("module_0001.jit_f.0003.passes_through_layout_assignment.after_dce.before_layout-assignment.hlo.pb", TRAINED),
        ("module_0001.jit_f.0003.p.after_dce.before_gpu-layout-assignment.txt.xz", TRAINED),
        ("module_0001.jit_f.0004.p.after_layout-assignment.before_sub-byte-size-setter.txt", "after_layout_assignment"),
        ("module_0001.jit_f.0012.simplification_after_layout_assignment.after_pipeline-start.before_algsimp.txt",
         "after_layout_assignment"),
        ("module_0001.jit_f.cpu_after_optimizations.hlo.pb", "after_layout_assignment"),
        ("module_0001.jit_f.sm_8.0_gpu_after_optimizations.txt", "after_layout_assignment"),
    ],
)  # fmt: skip
def test_the_name_of_a_dump_decides(name: str, stage: Stage, dot_and_reshape: HloModuleProto) -> None:
    for opcode in ("parameter", "call", "copy"):
        dot_and_reshape.computations[0].instructions[0].opcode = opcode
        assert stage_of(Path(name), dot_and_reshape) == stage


@pytest.mark.parametrize(
    ("opcode", "stage"),
    [("call", "before_optimizations"), ("copy", "after_layout_assignment"), ("bitcast", "after_layout_assignment"),
     ("fusion", TRAINED), ("parameter", TRAINED)],
)  # fmt: skip
def test_opcodes_of_a_stage(opcode: str, stage: Stage, dot_and_reshape: HloModuleProto) -> None:
    dot_and_reshape.computations[0].instructions[0].opcode = opcode
    assert stage_of(PLAIN, dot_and_reshape) == stage


def test_a_schedule_is_made_after_layout_assignment(dot_and_reshape: HloModuleProto) -> None:
    dot_and_reshape.schedule.SetInParent()
    assert stage_of(PLAIN, dot_and_reshape) == "after_layout_assignment"


def test_optimizations_remove_equal_constants(dot_and_reshape: HloModuleProto) -> None:
    computation = dot_and_reshape.computations[0]
    for number, value in enumerate((1.0, 2.0, 1.0)):
        one = computation.instructions.add(opcode="constant", id=100 + number)
        one.literal.f32s.append(value)
        assert stage_of(PLAIN, dot_and_reshape) == ("before_optimizations" if number == 2 else TRAINED)
    # Only in one computation: each has constants of its own.
    other = dot_and_reshape.computations.add(name="other", id=computation.id + 1)
    other.instructions.append(computation.instructions.pop())
    assert stage_of(PLAIN, dot_and_reshape) == TRAINED
