"""Modules of the user's programs, in the current folder."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = (Path(__file__).parent / "user_programs.txt").read_text(encoding="utf-8")


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that writes a module into the test's folder, makes it the current one, and returns it."""

    def write(name: str, text: str) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    return write


@pytest.fixture
def programs(user_module: Callable[[str, str], Path]) -> Path:
    """The current folder, with the module user_programs of functions of f32[8,16] and f32[16,8]."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    return user_module("user_programs", PROGRAMS)
