"""Stages of modules, by the names that XLA gives to dumps and by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.files import DataError
from hlorank.hlo import stage
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.stage import TRAINED, Stage, stage_of
from hlorank.hlo.xla_process import XlaError

PLAIN = Path("own.pb")


@pytest.mark.parametrize(
    ("name", "expected"),
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
def test_the_name_of_a_dump_decides(name: str, expected: Stage, dot_and_reshape: HloModuleProto) -> None:
    for opcode in ("parameter", "call", "copy"):
        dot_and_reshape.computations[0].instructions[0].opcode = opcode
        assert stage_of(Path(name), dot_and_reshape) == expected


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [("call", "before_optimizations"), ("copy", "after_layout_assignment"), ("bitcast", "after_layout_assignment"),
     ("fusion", TRAINED), ("parameter", TRAINED)],
)  # fmt: skip
def test_opcodes_of_a_stage(opcode: str, expected: Stage, dot_and_reshape: HloModuleProto) -> None:
    dot_and_reshape.computations[0].instructions[0].opcode = opcode
    assert stage_of(PLAIN, dot_and_reshape) == expected


def test_a_schedule_is_made_after_layout_assignment(dot_and_reshape: HloModuleProto) -> None:
    dot_and_reshape.schedule.SetInParent()
    assert stage_of(PLAIN, dot_and_reshape) == "after_layout_assignment"
    assert not stage.needs_compilation(PLAIN, dot_and_reshape, "layout:cpu:random")


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


@pytest.mark.parametrize(
    ("name", "collection", "needed"),
    [
        ("m.before_optimizations.txt", "layout:cpu:random", True),
        ("m.txt", "layout:cpu:models", True),
        ("m.after_dce.before_layout-assignment.txt", "layout:cpu:random", False),
        ("m.cpu_after_optimizations.txt", "layout:cpu:random", False),
        ("m.before_optimizations.txt", "layout:xla:random", False),
        ("m.before_optimizations.txt", "tile:cpu", False),
    ],
)
def test_only_modules_for_a_cpu_are_compiled(
    name: str, collection: str, needed: bool, dot_and_reshape: HloModuleProto
) -> None:
    assert stage.needs_compilation(Path(name), dot_and_reshape, collection) == needed


def test_a_module_that_does_not_compile_is_refused(
    monkeypatch: pytest.MonkeyPatch, dot_and_reshape: HloModuleProto
) -> None:
    def refuse(work: str, data: bytes) -> bytes:
        raise XlaError(f"{work} of {len(data)} bytes")

    monkeypatch.setattr(stage, "in_process", refuse)
    with pytest.raises(DataError) as raised:
        stage.before_layout_assignment(dot_and_reshape)
    assert str(raised.value.found) == f"capture of {dot_and_reshape.ByteSize()} bytes"
