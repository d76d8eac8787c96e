"""Compilation of a module up to layout assignment, in another process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hlorank.files import DataError
from hlorank.hlo import compile as compiler
from hlorank.hlo.hlo_pb2 import HloModuleProto
from tests.hlo.test_stage import PLAIN


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
    assert compiler.needs_compilation(Path(name), dot_and_reshape, collection) == needed


def test_a_module_after_layout_assignment_is_not_compiled(dot_and_reshape: HloModuleProto) -> None:
    dot_and_reshape.computations[0].instructions[-1].opcode = "copy"
    assert not compiler.needs_compilation(PLAIN, dot_and_reshape, "layout:cpu:random")


def test_without_jax_there_is_the_remedy(monkeypatch: pytest.MonkeyPatch, dot_and_reshape: HloModuleProto) -> None:
    monkeypatch.setattr(compiler, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="pip install"):
        compiler.before_layout_assignment(dot_and_reshape)


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("import time; time.sleep(60)", "more than 1 seconds"),
        ("import os; os.abort()", "SIGABRT"),
        ("import sys; sys.exit(7)", "status 7"),
        ("import sys; print('instruction x: no', end=''); sys.exit(1)", "instruction x: no"),
    ],
)
def test_a_compiler_that_fails_is_an_error(
    child: str, reason: str, monkeypatch: pytest.MonkeyPatch, dot_and_reshape: HloModuleProto
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    monkeypatch.setattr(compiler, "MAX_SECONDS", 1)
    monkeypatch.setattr(compiler, "_COMMAND", [sys.executable, "-c", child])
    with pytest.raises(DataError) as raised:
        compiler.before_layout_assignment(dot_and_reshape)
    assert reason in str(raised.value.found)
