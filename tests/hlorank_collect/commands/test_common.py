"""Wrong usage of both commands: it is one line, before anything is measured or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main

SHAPES = ["--arguments", "f32[8,16] f32[16,8]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect"], "no program"),
        (["collect", "m:f", "--allow-busy"], "'m:f'"),
        (["collect", "mlp", *SHAPES], "'mlp'"),
        (["collect", "m:f", "--core", "12345"], "--core 12345"),
        (["collect", "m:f", "--collection", "layout:xla:random"], "layout:xla:random"),
        (["collect", "m:f", "--collection", "tile:cpu"], "c-loop-nests"),
        (["collect", "m:f", "--scale-batch", "2"], "--scale-batch"),
        (["collect", "no-such.hlo"], "no-such.hlo: "),
        (["autotune", "--random"], "--remeasure"),
        (["autotune", "m:f", "--remeasure", "x.json"], "--remeasure"),
        (["autotune", "m:f", "--model", "nowhere"], "--model nowhere"),
        (["autotune", "m:f", "m:g", *SHAPES, "--apply", "missing.json"], "missing.json"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("out", "status"), [("user_programs.py/own", 2), ("/proc/own", 1)])
@pytest.mark.parametrize("command", [["collect"], ["autotune", "--random"]])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: list[str], out: str, status: int, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", None)
    assert main([*command, "user_programs:dots", *SHAPES, "--out", out]) == status
