"""The entry point, and `hlorank report`."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import hlorank
from hlorank.cli.main import main, make_parser
from hlorank.files import write_json
from hlorank.version import __version__
from tests.cli.conftest import Command
from tests.data.npz_files import save

HEAVY = {"torch", "lightning", "mlflow", "jax", "sklearn", "scipy", "pandas", "jinja2", "dvc", "hydra", "sqlalchemy"}
HEAVY |= {"altair", "matplotlib", "optuna", "torch_geometric", "torchmetrics"}
NAMES = [
    name
    for action in make_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
    for name in action.choices
]


def test_help_and_refusals_import_nothing_heavy(model: Path, graphs: list[Path]) -> None:
    """In one process: what a command imports, the ones after it have imported too."""
    shown: list[list[str]] = [[], ["--help"], *([name, "--help"] for name in NAMES)]
    refused = [["rank", "--model", str(model), "none.txt"], ["rank", "--model", "nowhere", str(graphs[0])]]
    code = f"""
import sys
from hlorank.cli.main import main
for arguments in {[*shown, *refused]!r}:
    try:
        main(arguments)
    except SystemExit:
        pass
    heavy = sorted(set(sys.modules) & {HEAVY!r})
    assert not heavy, (arguments, heavy)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    errors = ended.stderr.splitlines()
    assert [line.split(": ")[:2] for line in errors] == [["error", "none.txt"], ["error", "nowhere"]]
    for arguments in shown:
        assert f"usage: {' '.join(['hlorank', *arguments[:-1]])}" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("rank --dump before_layout-assignment {program}", "pandas scipy"),
        ("rank --model {model} {graph}", "pandas scipy"),
        ("inspect {graph} {program}", "pandas"),
        ("convert {program} {folder}/npz", "pandas"),
        ("evaluate {scores} --collection tile:synthetic --root {root} --split valid --cache {folder}", "scipy"),
        ("best", ""),
    ],
)
def test_a_command_imports_only_what_it_uses(
    arguments: str,
    allowed: str,
    program: Path,
    model: Path,
    graphs: list[Path],
    tracking_database: Path,
    tiny_collections: Path,
) -> None:
    folder, root = program.parent, tiny_collections / "raw"
    shutil.copy(tracking_database, folder / "mlflow.db")
    counts = hlorank.Evaluator("tile:synthetic", root, "valid", folder).configurations.items()
    save(scores := folder / "scores.npz", {name: np.arange(count, dtype=np.float64) for name, count in counts})
    places = {"program": program, "model": model, "graph": graphs[0], "folder": folder, "root": root, "scores": scores}
    code = f"import sys; from hlorank.cli.main import main; main(); print(*{HEAVY!r} & {{*sys.modules}})"
    words = [sys.executable, "-P", "-c", code, *arguments.format_map(places).split()]
    without = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(words, capture_output=True, text=True, env=without, cwd=folder)
    assert "Traceback" not in done.stderr
    assert {*done.stdout.splitlines()[-1].split()} <= {*allowed.split()}


def test_the_list_of_commands_the_version_and_wrong_usage(call: Command, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = call()
    for name in NAMES:
        assert re.search(rf"^ +{name} +\w", shown, re.MULTILINE), name
    for arguments, status in ((["--version"], "0"), (["convert", "a.pb"], "2")):
        with pytest.raises(SystemExit, match=status):
            main(arguments)
    captured = capsys.readouterr()
    assert captured.out == f"hlorank {__version__}\n"
    assert "FOLDER" in captured.err


def test_an_error_of_the_program_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.runs.find.best_runs", Mock(side_effect=RuntimeError("no file")))
    with pytest.raises(RuntimeError, match="no file"):
        main(["best"])


def test_ctrl_c_ends_a_command_in_one_line(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("hlorank.runs.find.best_runs", "hlorank.cli.main.make_parser"):
        monkeypatch.setattr(place, Mock(side_effect=KeyboardInterrupt))
        out, error = call("best", status=130)
        assert (out, error.count("\n")) == ("", 1)


@pytest.fixture
def models(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with one model that was never tracked or evaluated."""
    folder = cwd / "models/layout/cpu/random/gst"
    write_json(folder / "spec.json", {"collection": "layout:cpu:random", "method": "gst", "data": "d" * 16})
    write_json(folder / "run.json", {"run_id": "0" * 32, "tracking_uri": "sqlite:///mlflow.db"})
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return cwd / "models"


def test_a_report_names_unevaluated_models(models: Path, call: Command, caplog: pytest.LogCaptureFixture) -> None:
    assert call("report", models, "-o", "out/some.html")[0] == "out/some.html\n"
    assert "layout:cpu:random" in Path("out/some.html").read_text(encoding="utf-8")
    assert "models/layout/cpu/random/gst" in caplog.text
    assert "--evaluate" in caplog.text
    caplog.clear()
    assert call("report", "models", "--evaluate")[0] == "report.html\n"
    assert Path("report.html").is_file()
    (warning,) = caplog.messages
    assert "spec.json" in warning, "the reason"


def test_what_cannot_be_reported_or_written_is_one_line(models: Path, call: Command) -> None:
    for arguments in (["nowhere"], ["f" * 32], ["models", "-o", "."]):
        call.error("report", *arguments)
    assert not Path("report.html").exists()
    (models / "file").touch()
    error = call.error("report", models, "-o", models / "file" / "report.html", status=1)
    assert error == f"{models}/file: File exists\n"
    write_json(models / "layout/cpu/random/gst/spec.json", {"steps": "many"})
    assert "steps" in call.error("report", "models")
