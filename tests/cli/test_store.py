"""Commands on the MLflow store: `hlorank best` and `hlorank register`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from hlorank.config import TrackingConfig
from hlorank.files import DataError
from hlorank.metrics import BEST_TAU, EXPERIMENT
from hlorank.runs.registry import Registration
from hlorank.runs.store import NAME, PARENT_VARIABLE, open_run
from hlorank.runs.sweeps import claim, job_tags
from tests.cli.conftest import Command

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
            mlflow.log_params({"seed": seed, **({"data.graphs": other["graphs"]} if "graphs" in other else {})})
            mlflow.log_text("{}", "model/spec.json")
            if tau is not None:
                mlflow.log_metric(BEST_TAU, tau)
        return run_id

    return logged


def best(call: Command, *arguments: object) -> list[dict[str, Any]]:
    """Return the rows, which a database file gives without MLflow as MLflow gives them."""
    found: list[dict[str, Any]] = call.json("best", *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hlorank.runs.find.existing_file", lambda: None)
        assert call.json("best", *arguments) == found
    return found


def test_the_best_of_each_collection(log: Log, call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log("tile:cpu", 0.5)
    log("layout:cpu:random", 0.25, "full")
    first = log("layout:cpu:random", 0.75, "gst_e", 3, of="kaggle_6")
    log("layout:cpu:random", None)
    tile = log("tile:cpu", 0.625, experiment="other")
    layout, other = best(call)
    assert layout == {
        "collection": "layout:cpu:random",
        "method": "gst_e",
        "experiment": "kaggle_6",
        "valid_kendall_tau": 0.75,
        "standard_deviation": None,
        "seeds": 1,
        "folds": 1,
        "seed": 3,
        "name": "gst_e learning_rate=0.01",
        "features": "data of layout:cpu:random",
        "run_id": first,
        "model": str(tmp_path / "artifacts" / first / "artifacts" / "model"),
    }
    assert (other["collection"], other["run_id"], other["experiment"]) == ("tile:cpu", tile, None)
    assert [training["run_id"] for training in best(call, "--collection", "layout/cpu/random")] == [first]
    monkeypatch.setenv("COLUMNS", "80")  # which has no room for the last columns, but run ids are never broken
    shown, _ = call("best")
    assert first in shown
    assert "0.7500" in shown
    assert layout["model"] not in shown
    assert layout["model"] in call("best", "--wide")[0]
    shutil.rmtree(tmp_path / "artifacts" / first)  # as with the database of another machine, or a moved project
    assert best(call)[0]["model"] == f"runs:/{first}/model"


def test_finished_trainings_on_the_same_features_compete(log: Log, tracking: TrackingConfig, call: Command) -> None:
    for data, tau, method in (("old", 0.75, "gst"), ("new", 0.25, "gst"), ("new", 0.5, "gst"), ("old", 0.25, "full")):
        run = log("tile:cpu", tau, method, data=data)
    for data, tau in (("full", 0.25), ("gst", 0.125)):
        log("layout:cpu:random", tau, data, data=data, features="the same")
    client = mlflow.MlflowClient(tracking.uri)
    for status in ("FAILED", "KILLED", "RUNNING"):
        client.update_run(log("tile:cpu", None), status=status)
    expected = [("layout:cpu:random", "the same", 0.25), ("tile:cpu", "old", 0.75), ("tile:cpu", "new", 0.5)]
    for _ in range(2):
        found = best(call)
        assert [(one["collection"], one["features"], one["valid_kendall_tau"]) for one in found] == expected
        client.update_run(run, status="RUNNING")  # its evaluation was killed: the training is complete


def test_means_over_seeds_and_folds_are_ranked_and_rows_are_told_apart(
    log: Log, tracking: TrackingConfig, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, tau in enumerate((0.75, 0.25)):
        log("tile:cpu", tau, "lucky", seed, features="a" * 16, graphs="g")
        lead = log("tile:cpu", 0.625 + seed / 16, "steady", seed, features="a" * 16, graphs="g")
    log("tile:cpu", 0.125, "steady", 0, features="b" * 16, graphs="g")
    with open_run(tracking, "somebody's", {}):
        mlflow.log_metric(BEST_TAU, 1)
    log("tile:cpu", float("inf"), "infinite", features="a" * 16)
    keys = ("method", "features", "folds", "seeds", "valid_kendall_tau", "run_id")
    assert [[row[key] for key in keys] for row in best(call)] == [
        ["steady", "a" * 16, 1, 2, 0.65625, lead],
        ["steady", f"{'a' * 16}, {'b' * 16}", 2, 2, (0.65625 + 0.125) / 2, lead],
    ]
    monkeypatch.setenv("COLUMNS", "60")
    assert {"aaaaaaaa", lead} <= {*call("best")[0].split()}


def test_best_of_a_sweep(log: Log, tracking: TrackingConfig, call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(tracking, "sweep", {NAME: "one"}) as (parent, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    child = log("tile:cpu", 0.5)
    monkeypatch.delenv(PARENT_VARIABLE)
    log("tile:cpu", 0.9)
    before = log("tile:cpu", 0.75)
    assert [training["run_id"] for training in best(call, "--sweep", "one")] == [child]
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    claim(tracking, before)
    assert [training["run_id"] for training in best(call, "--sweep", "one")] == [before]
    assert "tile:gpu in the sweep 'one'" in call.error("best", "--sweep", "one", "--collection", "tile:gpu")


def test_errors_of_best(tracking: TrackingConfig, call: Command) -> None:
    cases = ((), "a finished training"), (("--sweep", "none"), "'none'"), (("--sweep", "it's"), "it's")
    for arguments, named in (*cases, (("--collection", "layout:xla"), "collection 'layout:xla'")):
        assert named in call.error("best", *arguments)


@pytest.mark.parametrize("arguments", [["best"], ["register", "f" * 32]], ids=lambda arguments: arguments[0])
@pytest.mark.usefixtures("tracking_environment")
def test_unusable_store(arguments: list[str], tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (garbage := tmp_path / "garbage.db").write_text("garbage")
    for uri, shown, status in (
        ("http://me:secret@127.0.0.1:9", "http://***@127.0.0.1:9: no MLflow server answers", 1),
        (f"sqlite:///{tmp_path}/none.db", "none.db: tracking store: ", 2),
        ("nowhere://x", "nowhere://x", 1 if arguments == ["best"] else 2),
        (f"sqlite:///{garbage}", "garbage.db: (sqlite3.DatabaseError) file is not a database", 1),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(uri)
        error = call.error(*arguments, status=status)
        assert shown in error
        assert "secret" not in error
    assert [*tmp_path.glob("*.db")] == [garbage], "a database was made"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Calls of `register`, with model and `move`; the model `missing` does not exist."""
    calls: list[tuple[str, bool]] = []

    def register(reference: str, move: bool) -> Registration:
        if reference == "missing":
            raise DataError("model", "a model folder", "no such folder", file=reference)
        calls.append((reference, move))
        number = len(calls)
        taus = {"evaluate": 0.5, "training": 0.25} if number == 1 else {}
        champion = number == 1 or reference == "better"
        name = "layout.cpu.random"
        return Registration(name, number, number == 1, "f" * 32, "gst", "3", "data1", taus, champion, "some reason")

    monkeypatch.setattr("hlorank.runs.registry.register", register)
    return calls


def test_registered_models_are_a_table(registered: list[Any], call: Command) -> None:
    shown, _ = call("register", "one", "two")
    assert registered == [("one", False), ("two", False)]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[1:2] + lines[3:] == [
        "model version champion method seed (evaluate) (training) data",
        "layout.cpu.random 1 yes gst 3 0.5000 0.2500 data1",
        "some reason",
        "layout.cpu.random 2 no gst 3 data1",
        "registered before; some reason",
    ]


def test_registered_models_as_json_and_errors(registered: list[Any], call: Command, tracking_environment: None) -> None:
    for arguments, named in ((["one", "two", "--champion"], "--champion: "), (["missing"], "missing: model: ")):
        assert call.error("register", *arguments).startswith(named)
        assert not registered
    (printed,) = call.json("register", "one", "--champion")
    assert registered == [("one", True)]
    expected = {"model": "layout.cpu.random", "version": 1, "new": True, "champion": True}
    assert {key: printed[key] for key in expected} == expected
    assert printed["valid_tau"] == {"evaluate": 0.5, "training": 0.25}
    shown, error = call("register", "one", "missing", "two", status=2)
    assert (registered[1:], "layout.cpu.random" in shown, "missing: model: " in error) == ([("one", False)], True, True)
    registered.clear()  # a champion that a later model replaces is none in the end
    assert [one["champion"] for one in call.json("register", "one", "better")] == [False, True]
