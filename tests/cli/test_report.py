from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.files import write_json


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with one model that was never tracked or evaluated."""
    folder = tmp_path / "models/layout/cpu/random/gst"
    write_json(folder / "spec.json", {"collection": "layout:cpu:random", "method": "gst", "data": "d" * 16})
    write_json(folder / "run.json", {"run_id": "0" * 32, "tracking_uri": "sqlite:///mlflow.db"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "models"


def test_it_writes_one_file(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(models), "-o", "out/some.html"]) == 0
    assert capsys.readouterr().out == "out/some.html\n"
    assert "layout:cpu:random" in Path("out/some.html").read_text(encoding="utf-8")
    assert main(["report", "models"]) == 0
    assert Path("report.html").is_file()


def test_models_without_an_evaluation_are_named(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["report", str(models)]) == 0
    assert "models/layout/cpu/random/gst" in caplog.text
    assert "--evaluate" in caplog.text
    caplog.clear()
    assert main(["report", str(models), "--evaluate"]) == 0
    (warning,) = caplog.messages
    assert "spec.json" in warning, "the reason"


@pytest.mark.parametrize("arguments", [["nowhere"], ["f" * 32], ["models", "-o", "."]])
def test_inputs_that_do_not_exist(arguments: list[str], models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert not Path("report.html").exists()
