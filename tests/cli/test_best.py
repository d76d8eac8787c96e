"""`hlorank best`: the best training of each collection."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from hlorank.cli.main import main
from hlorank.config import TrackingConfig
from hlorank.metrics import BEST_TAU, EXPERIMENT
from hlorank.runs.store import NAME, PARENT_VARIABLE, open_run
from hlorank.runs.sweeps import claim, job_tags

Capture = pytest.CaptureFixture[str]
Log = Callable[..., str]


@pytest.fixture
def tracking(
    tracking_database: Path, tracking_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TrackingConfig:
    """Settings of a store that only one test uses."""
    shutil.copy(tracking_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    return TrackingConfig(uri=uri, experiment="hlorank", artifacts=str(tmp_path / "artifacts"))


@pytest.fixture
def log(tracking: TrackingConfig) -> Log:
    """Function that logs a training and returns the id of its run."""

    def logged(collection: str, tau: float | None, method: str = "gst", seed: int = 0, **other: str) -> str:
        tags = {"collection": collection, "method": method, "data": other.get("data", f"data of {collection}")}
        tags |= {key: other[name] for key, name in (("features", "features"), (EXPERIMENT, "of")) if name in other}
        config = tracking.model_copy(update={"experiment": other.get("experiment", "hlorank")})
        with open_run(config, f"{method} learning_rate=0.01", tags | job_tags()) as (run_id, _):
            mlflow.log_params({"seed": seed})
            mlflow.log_text("{}", "model/spec.json")
            if tau is not None:
                mlflow.log_metric(BEST_TAU, tau)
        return run_id

    return logged


def best(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    assert main(["best", "--json", *arguments]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_the_best_of_each_collection(
    log: Log, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log("tile:cpu", 0.5)
    log("layout:cpu:random", 0.25, "full")
    first = log("layout:cpu:random", 0.75, "gst_e", 3, of="kaggle_6")
    log("layout:cpu:random", None)
    tile = log("tile:cpu", 0.625, experiment="other")
    layout, other = best(capsys)
    assert layout == {
        "collection": "layout:cpu:random",
        "method": "gst_e",
        "experiment": "kaggle_6",
        "seed": 3,
        "name": "gst_e learning_rate=0.01",
        "valid_kendall_tau": 0.75,
        "features": "data of layout:cpu:random",
        "run_id": first,
        "model": str(tmp_path / "artifacts" / first / "artifacts" / "model"),
    }
    assert (other["collection"], other["run_id"], other["experiment"]) == ("tile:cpu", tile, None)
    assert [training["run_id"] for training in best(capsys, "--collection", "layout/cpu/random")] == [first]
    monkeypatch.setenv("COLUMNS", "80")  # which has no room for the last columns, but run ids are never broken
    assert main(["best"]) == 0
    shown = capsys.readouterr().out
    assert first in shown
    assert "0.7500" in shown
    assert layout["model"] not in shown
    assert main(["best", "--wide"]) == 0
    assert layout["model"] in capsys.readouterr().out
    shutil.rmtree(tmp_path / "artifacts" / first)  # as with the database of another machine, or a moved project
    assert best(capsys)[0]["model"] == f"runs:/{first}/model"


def test_only_trainings_on_the_same_features_are_compared(log: Log, capsys: Capture) -> None:
    for data, tau in (("old", 0.75), ("new", 0.25), ("new", 0.5), ("old", 0.25)):
        log("tile:cpu", tau, data=data)
    for data, tau in (("whole graphs", 0.25), ("segments", 0.125)):
        log("layout:cpu:random", tau, data=data, features="the same")
    assert [(found["collection"], found["features"], found["valid_kendall_tau"]) for found in best(capsys)] == [
        ("layout:cpu:random", "the same", 0.25),
        ("tile:cpu", "old", 0.75),
        ("tile:cpu", "new", 0.5),
    ]


def test_trainings_that_did_not_finish_do_not_count(log: Log, tracking: TrackingConfig, capsys: Capture) -> None:
    run = log("tile:cpu", 0.5)
    client = mlflow.MlflowClient(tracking.uri)
    for status in ("FAILED", "KILLED", "RUNNING"):
        client.update_run(log("tile:cpu", None), status=status)
    assert [training["run_id"] for training in best(capsys)] == [run]
    client.update_run(log("tile:cpu", 0.75), status="RUNNING")  # its evaluation was killed: the training is complete
    assert best(capsys)[0]["valid_kendall_tau"] == 0.75


def test_the_best_of_a_sweep(
    log: Log, tracking: TrackingConfig, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tracking, "sweep", {NAME: "one"}) as (parent, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    child = log("tile:cpu", 0.5)
    monkeypatch.delenv(PARENT_VARIABLE)
    log("tile:cpu", 0.9)
    before = log("tile:cpu", 0.75)
    assert [training["run_id"] for training in best(capsys, "--sweep", "one")] == [child]
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    claim(tracking, before)
    assert [training["run_id"] for training in best(capsys, "--sweep", "one")] == [before]
    assert main(["best", "--sweep", "one", "--collection", "tile:gpu"]) == 2
    assert "a finished training of tile:gpu in the sweep 'one', validated, found none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a finished training, validated, found none"),
        (["--sweep", "none"], "expected a sweep named 'none', found none"),
        (["--sweep", "it's"], "it's"),
        (["--collection", "layout:xla"], "collection 'layout:xla': expected"),
    ],
)
def test_errors(arguments: list[str], message: str, tracking: TrackingConfig, capsys: Capture) -> None:
    assert main(["best", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("uri", "shown", "message"),
    [
        ("http://me:secret@127.0.0.1:9", "http://***@127.0.0.1:9", "Connection refused"),
        ("nowhere://x", "nowhere://x", "got unsupported URI"),
        ("sqlite:///garbage.db", "sqlite:///garbage.db", "file is not a database"),
        ("sqlite:///none.db", "none.db", "tracking store"),
    ],
)
@pytest.mark.parametrize("command", [["best"], ["register", "f" * 32]], ids=lambda command: command[0])
def test_a_store_that_can_not_be_used(
    command: list[str],
    uri: str,
    shown: str,
    message: str,
    tracking_environment: None,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("garbage.db").write_text("garbage")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    assert main(command) in {1, 2}  # a model that MLflow cannot download is bad input, whatever the cause
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert shown in line
    assert message in line
    assert "secret" not in line
    assert not Path("none.db").exists()
