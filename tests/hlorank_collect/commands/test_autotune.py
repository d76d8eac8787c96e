from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.files import read_json
from hlorank_collect import machine
from hlorank_collect.autotune.tuned import TuneTask
from hlorank_collect.run_tasks import Summary

PROGRAMS = """
import jax.numpy as jnp

def dots(x, w):
    return jnp.tanh(x @ w).reshape(4, -1)

def nothing(x, w):
    return x.sum() + w.sum()
"""
SHAPES = ["--arguments", "f32[16,8] f32[8,16]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--remeasure"),
        (["m:f", "--remeasure", "x.json"], "--remeasure"),
        (["m:f"], "--model"),
        (["m:f", "--random", "--model", "m"], "--random"),
        (["m:f", "--model", "nowhere"], "--model nowhere"),
        (["m:f", "--random"], "'m:f'"),
        (["nowhere/module.txt", "--random"], "nowhere/module.txt"),
        (["m:f", "--random", "--top", "0"], "--top 0"),
        (["m:f", "--random", "--rounds", "3"], "--rounds 3"),
        (["m:f", "--random", "--core", "12345"], "--core 12345"),
        (["--apply", "own.json", "--remeasure", "x.json"], "--apply own.json"),
        (["m:f", "m:g", "--apply", "own.json"], "--apply own.json"),
        (["m:f", "--apply", "own.json", "--random"], "--random"),
        (["m:f", "--apply", "missing.json"], "missing.json"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    assert main(["autotune", *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def folder(user_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of small programs, on a machine that counts as quiet."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)
    return user_module("cli_tuned", PROGRAMS)


def test_programs_are_tuned_and_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["cli_tuned:nothing", "cli_tuned:dots"]
    options = ["--random", "--candidates", "9", "--top", "3", "--rounds", "5"]
    assert main(["autotune", *names, *SHAPES, *options]) == 1
    captured = capsys.readouterr()
    assert "cli_tuned-nothing" in captured.err
    assert "3 of 9 candidates measured, 0 left out" in captured.out
    (saved,) = (folder / "tuned").glob("*.json")
    about = read_json(saved)
    assert (about["candidates"], len(about["measured"]), about["rounds"]) == (9, 3, 5)
    (folder / "broken.json").write_text("[")
    assert main(["autotune", "--remeasure", "broken.json", str(saved), "--rounds", "5"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: broken.json: ")
    shown = captured.out
    assert ("runs with the default in" if about["winner"] == "default" else "times as fast as the default") in shown


def test_a_model_may_be_one_of_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "spec.json").write_text('{"collection": "layout:cpu:random"}')
    name = "models:/layout.cpu.random@champion"

    def run_tasks(tasks: list[TuneTask], **_: object) -> Summary:
        assert [(task.model, task.reference) for task in tasks] == [(str(folder), name)]
        return Summary(measured=["dots"])

    monkeypatch.setattr("hlorank.runs.find.model_folder", {name: folder}.__getitem__)
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", run_tasks)
    assert main(["autotune", "cli_tuned:dots", *SHAPES, "--model", name]) == 0
