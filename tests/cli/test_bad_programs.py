"""Texts of programs that are damaged, of another XLA, or unusual: refused by name, or converted and ranked."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.hlo import forms

TEXT = """HloModule m

ENTRY e {
  x = f32[8,4]{1,0} parameter(0)
  w = f32[4,16]{1,0} parameter(1)
  ROOT y = f32[8,16]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
COMMANDS = ("convert", "inspect", "rank")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def jaxlib() -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")


def run(command: str, path: Path, model: Path) -> int:
    options = {"convert": ["--out", str(path.parent / "out")], "inspect": [], "rank": ["--model", str(model)]}
    return main([command, str(path), *options[command]])


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (" dot(", " ragged-dotty(", "line 6, column 27 (y): "),
        ("lhs_contracting_dims", "lhs_new_dims", "line 6, column 38 (y): "),
        ("f32[4,16]{1,0} par", "f5[4,16]{1,0} par", "line 5, column 7 (w): "),
        ("dot(x, w)", "dot(x, v)", "line 6, column 34 (y): "),
        (" w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n", "", "line 6, column "),
        ("ROOT y", "s4", "line 6, column 3"),
        ("f32[8,4]{1,0} par", "f32[?,4]{1,0} par", "computations[0].instructions[0] (x): "),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_text_is_named_with_its_instruction(
    command: str, old: str, new: str, place: str, tmp_path: Path, model: Path, capsys: Capture
) -> None:
    assert old in TEXT
    path = tmp_path / "bad.txt"
    path.write_text(TEXT.replace(old, new))
    assert run(command, path, model) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: {place}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_text_beyond_the_limit_is_refused(
    command: str, tmp_path: Path, model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MAX_BYTES", len(TEXT) - 1)
    path = tmp_path / "large.txt"
    path.write_text(TEXT)
    assert run(command, path, model) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: file: ")


@pytest.mark.parametrize(
    ("old", "new", "warnings"),
    [
        ("f32[8,4]{1,0} par", "f32[<=8,4]{1,0} par", ["dynamic"]),
        ("f32[4,16]{1,0} par", "f8e5m2[4,16]{1,0} par", ["'f8e5m2' (1)"]),
        ("f32[4,16]{1,0} par", "s4[4,16]{1,0} par", ["'s4' (1)"]),
        ("ENTRY e {\n", "ENTRY e {\n  t = token[] parameter(2)\n", []),
        (
            "w = f32[4,16]{1,0} parameter(1)",
            "p = (f32[4,16]{1,0}, (s32[], token[])) parameter(1)\n  w = f32[4,16]{1,0} get-tuple-element(p), index=0",
            [],
        ),
    ],
)
def test_unusual_types_and_shapes_are_ranked(
    old: str, new: str, warnings: list[str], tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert old in TEXT
    path = tmp_path / "unusual.txt"
    path.write_text(TEXT.replace(old, new))
    with caplog.at_level(logging.WARNING, logger="hlorank.hlo.reader"):
        assert run("convert", path, model) == 0
    messages = [record.getMessage() for record in caplog.records if record.name == "hlorank.hlo.reader"]
    assert len(messages) == len(warnings)
    assert all(warning in message for warning, message in zip(warnings, messages, strict=True))
    with np.load(io.BytesIO((tmp_path / "out" / "unusual.npz").read_bytes())) as arrays:
        assert arrays["node_feat"].min() >= 0
        assert arrays["node_config_ids"].size == 1
    assert run("inspect", path, model) == 0
    assert run("rank", path, model) in (0, 3)  # 3: not a module right before layout assignment
