from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.files import read_json
from hlorank_collect import machine
from hlorank_collect.autotune.tuned import TuneTask
from hlorank_collect.run_tasks import Summary

SHAPES = ["--arguments", "f32[8,16] f32[16,8]"]


def test_programs_are_tuned_and_run_again(
    programs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)
    names = ["user_programs:nothing", "user_programs:dots"]
    options = ["--random", "--candidates", "9", "--top", "3", "--rounds", "5"]
    assert main(["autotune", *names, *SHAPES, *options]) == 1
    captured = capsys.readouterr()
    assert "user_programs-nothing" in captured.err
    assert "3 of 9 candidates measured, 0 left out" in captured.out
    (saved,) = (programs / "tuned").glob("*.json")
    about = read_json(saved)
    assert (about["candidates"], len(about["measured"]), about["rounds"]) == (9, 3, 5)
    (programs / "broken.json").write_text("[")
    assert main(["autotune", "--remeasure", "broken.json", str(saved), "--rounds", "5"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: broken.json: ")
    shown = captured.out
    assert ("runs with the default in" if about["winner"] == "default" else "times as fast as the default") in shown


def test_a_model_may_be_one_of_mlflow(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "spec.json").write_text('{"collection": "layout:cpu:random"}')
    name = "models:/layout.cpu.random@champion"

    def run_tasks(tasks: list[TuneTask], **_: object) -> Summary:
        assert [(task.model, task.reference) for task in tasks] == [(str(programs), name)]
        return Summary(measured=["dots"])

    monkeypatch.setattr("hlorank.runs.find.model_folder", {name: programs}.__getitem__)
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", run_tasks)
    assert main(["autotune", "user_programs:dots", *SHAPES, "--model", name]) == 0


@pytest.mark.slow
def test_a_real_model_is_tuned_with_one_example(programs: Path, shared_data: Path) -> None:
    file = shared_data / "hlo" / "imagenette.inference.hlo.txt.xz"
    settings = ["--random", "--candidates", "4", "--top", "2", "--rounds", "4"]
    assert main(["autotune", str(file), "--scale-batch", "1", "--allow-busy", *settings]) == 0
    assert len(read_json(programs / "tuned/imagenette.inference.b1.json")["measured"]) == 2
