"""`make repro`: the order of stages, their number at the same time, failures, and the locks of DVC."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hlorank.stages import repro

PARAMS = """
pipeline:
  methods: [full, gradient_boosting]
  tile_methods: [full]
  collections: [layout/a/random, tile/b]
  trainings:
    layout/a/random-full: {collection: layout/a/random, method: full}
    layout/a/random-gradient_boosting: {collection: layout/a/random, method: gradient_boosting}
    tile/b-full: {collection: tile/b, method: full}
"""
# Takes the place of DVC: notes when each command starts and ends, and fails where its arguments name a file.
STUB = """
import json, sys, time, pathlib
arguments = sys.argv[1:]
if arguments[0] == "status":
    sys.exit(0 if pathlib.Path("done").exists() else 1)
def note(what):
    with open("notes", "a") as file:
        file.write(json.dumps([what, arguments[-1]]) + "\\n")
note("start")
print("Use `dvc push` to send your updates", "working", sep="\\n", flush=True)
time.sleep(0.1)
note("end")
sys.exit(pathlib.Path(arguments[-1].replace("/", "_")).exists())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "dvc.yaml").write_text("stages: {train: {}, plot: {}}")
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repro, "_DVC", [sys.executable, "-S", "stub.py"])
    return tmp_path


def notes(project: Path) -> list[tuple[str, str]]:
    return [(what, name) for what, name in map(json.loads, (project / "notes").read_text().splitlines())]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_training_follows_the_preparation_of_its_collection(
    jobs: int, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repro.reproduce(jobs) == 0
    order = notes(project)
    for name, prepared in (
        ("layout/a/random-full", "layout/a/random"),
        ("layout/a/random-gradient_boosting", "layout/a/random"),
        ("tile/b-full", "tile/b"),
    ):
        assert order.index(("end", f"partition@{prepared}")) < order.index(("start", f"evaluate@{name}"))
    assert [name for what, name in order][-1] == "repro", "the stage plot"
    running = [sum(1 if what == "start" else -1 for what, _ in order[: n + 1]) for n in range(len(order))]
    assert max(running) == jobs
    lines = capsys.readouterr().out.splitlines()
    assert "tile/b-full | working" in lines
    assert not [line for line in lines if "push" in line]


def test_nothing_begins_after_a_failure(project: Path) -> None:
    (project / "partition@layout_a_random").touch()
    assert repro.reproduce(1) == 1
    assert [name for what, name in notes(project) if what == "start"] == ["partition@layout/a/random"]


def test_nothing_runs_if_all_is_up_to_date(project: Path) -> None:
    (project / "done").touch()
    assert repro.reproduce(2) == 0
    assert not (project / "notes").exists()


@pytest.mark.slow
def test_processes_of_dvc_do_not_stop_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"layout/{letter}/random" for letter in "abcdef"]
    trainings = {f"{name}-{method}": {"collection": name, "method": method} for name in names for method in ("m", "n")}
    pipeline = {"methods": ["m", "n"], "tile_methods": [], "collections": names, "trainings": trainings}
    (tmp_path / "params.yaml").write_text(json.dumps({"pipeline": pipeline}))
    each = {"matrix": {"collection": "${pipeline.collections}"}}
    made, model = "data/${item.collection}", "models/${item.collection}/${item.method}"
    stages = {
        "fetch": {**each, "cmd": f"mkdir -p {made} && echo 1 > {made}/raw", "deps": ["code"], "outs": [f"{made}/raw"]},
        "partition": {**each, "cmd": f"cp {made}/raw {made}/cut", "deps": [f"{made}/raw"], "outs": [f"{made}/cut"]},
        "train": {
            "foreach": "${pipeline.trainings}",
            "do": {
                "cmd": f"sleep 1 && mkdir -p {model} && cp {made}/cut {model}/weights",
                "deps": [f"{made}/cut", "code"],
                "outs": [f"{model}/weights"],
            },
        },
        "evaluate": {
            "foreach": "${pipeline.trainings}",
            "do": {
                "cmd": f"cp {model}/weights {model}/report",
                "deps": [f"{made}/cut", f"{model}/weights"],
                "outs": [f"{model}/report"],
            },
        },
    }
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    (tmp_path / "code").write_text("1")
    monkeypatch.chdir(tmp_path)
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"]):
        subprocess.run([sys.executable, "-m", *command] if command[0] == "dvc" else command, check=True)
    assert repro.reproduce(6) == 0
    assert all(Path("models", name, method, "report").is_file() for name in names for method in ("m", "n"))
    status = subprocess.run([sys.executable, "-m", "dvc", "status"], check=True, capture_output=True, text=True).stdout
    assert "up to date" in status
