"""The MLflow store: its creation, its servers, and runs that end in any way."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run
from mlflow.store.tracking import sqlalchemy_store
from mlflow.tracking import MlflowClient

from hlorank.config import Config, TrackingConfig
from hlorank.config.root import PathsConfig
from hlorank.metrics import BEST_TAU
from hlorank.runs import store as store_module
from scripts.relocate import main, relocate

Runs = Callable[[Config], list[Run]]


@pytest.fixture
def tracking(config: Config) -> TrackingConfig:
    return config.tracking


def test_runs_are_opened_and_resumed(
    config: Config, client: MlflowClient, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is resumed in its own experiment; unknown and deleted ones give way to new ones."""
    tracking, other = config.tracking, config.tracking.model_copy(update={"experiment": "other"})
    with store_module.open_run(tracking, "first", {"method": "gst"}, "0" * 32) as (first, resumed):
        mlflow.log_text("text", "note.txt")
    assert not resumed
    assert [path.name for path in (tmp_path / "artifacts").rglob("*.txt")] == ["note.txt"]
    monkeypatch.setenv(store_module.PARENT_VARIABLE, first)
    for name, earlier in (("child", None), ("ignored", first)):
        with store_module.open_run(other, name, {}, earlier) as (run_id, resumed):
            mlflow.log_metric("loss", 1.5)
        assert (resumed, run_id == first) == (earlier is not None,) * 2
    (run,), (child,) = runs(config), runs(config.model_copy(update={"tracking": other}))
    assert (run.info.run_id, run.info.run_name, run.info.status) == (first, "first", "FINISHED")
    assert (run.data.tags["method"], run.data.metrics) == ("gst", {"loss": 1.5})
    assert "mlflow.parentRunId" not in run.data.tags
    assert (child.info.run_name, child.data.tags["mlflow.parentRunId"]) == ("child", first)
    client.delete_run(first)
    monkeypatch.delenv(store_module.PARENT_VARIABLE)
    with store_module.open_run(tracking, "newer", {}, first) as (second, resumed):
        assert not resumed
    assert [run.info.run_id for run in runs(config)] == [second] != [first]


def test_finished_trainings(config: Config, client: MlflowClient, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best tau, which is logged last of all, says that a training has finished, and not the status of its run."""
    tracking, ids = config.tracking, []
    assert store_module.finished_training(tracking, "k") is None
    for key, tau in (("k", None), ("other", 0.9), ("k", 0.5), ("k", 0.25)):
        with store_module.open_run(tracking, "name", {store_module.FINGERPRINT: key}) as (run_id, _):
            if tau is not None:
                mlflow.log_metric(BEST_TAU, tau)
        ids.append(run_id)
    for error in (OSError, KeyboardInterrupt):  # such as a full disk while an evaluation is logged
        with pytest.raises(error), store_module.open_run(tracking, "name", {}, ids[2]):
            raise error
        assert {run.info.status for run in runs(config)} == {"FINISHED"}
    client.update_run(ids[2], status="RUNNING")  # an evaluation was killed
    assert store_module.finished_training(tracking, "k") == (ids[2], 0.5)
    client.delete_run(ids[2])
    assert store_module.finished_training(tracking, "k") == (ids[3], 0.25)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert store_module.finished_training(tracking, "k") is None
    assert client.get_experiment(store_module.open_experiment(tracking)).name == "mine"


def test_each_configuration_has_its_own_store_which_the_variable_overrides(
    config: Config, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    tracking = config.tracking
    other = tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/other.db"})
    for number, used in enumerate((tracking, other, tracking, tracking)):
        if number == 3:
            monkeypatch.setenv(store_module.URI_VARIABLE, other.uri)
        with store_module.open_run(used, str(number), {}):
            pass
    found = [runs(config.model_copy(update={"tracking": used})) for used in (tracking, other)]
    assert [sorted(run.info.run_name for run in stored) for stored in found] == [["0", "2"], ["1", "3"]]


@pytest.mark.parametrize(
    ("uri", "located"), [("postgresql+psycopg://127.0.0.1/mlflow", True), ("http://me:secret@127.0.0.1:5000", False)]
)
def test_only_databases_get_an_artifact_location(
    uri: str, located: bool, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = dict[str, Any]()
    monkeypatch.setattr(store_module, "check_server", lambda uri: None)
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: None)
    monkeypatch.setattr(mlflow, "create_experiment", lambda name, **others: created.update(others))
    monkeypatch.setattr(mlflow, "set_experiment", lambda name: SimpleNamespace(experiment_id="7"))
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "")
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    assert store_module.open_experiment(tracking.model_copy(update={"uri": uri})) == "7"
    assert created["artifact_location"] == (Path(tracking.artifacts).as_uri() if located else None)
    assert ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT" in os.environ) == ("secret" in uri)


def test_a_database_whose_creation_was_stopped_is_created_again(
    config: Config, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow cannot continue a creation: no part of one is ever in the place of the database."""
    path, made = tmp_path / "mlflow.db", tmp_path / "made.db"
    path.rename(made)

    class Store(sqlalchemy_store.SqlAlchemyStore):  # type: ignore[misc] # MLflow ships no types
        def __init__(self, uri: str, root: str) -> None:
            partial = Path(uri.removeprefix("sqlite:///"))
            if partial.name != path.name:  # of the request afterwards
                shutil.copy(made, partial)
                assert not path.exists()
                if stopped:
                    raise KeyboardInterrupt
            super().__init__(uri, root)

    monkeypatch.setattr(sqlalchemy_store, "SqlAlchemyStore", Store)
    for stopped in (True, False):
        with (
            pytest.raises(KeyboardInterrupt) if stopped else nullcontext(),
            store_module.open_run(config.tracking, "name", {}),
        ):
            pass
        assert path.exists() != stopped
        assert not list(tmp_path.glob(".mlflow.db*"))
    assert len(runs(config)) == 1


class Refusing(BaseHTTPRequestHandler):
    """A server that is none of MLflow, or that is busy."""

    status = 404

    def do_GET(self) -> None:
        self.send_error(self.status)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (name of the base class)
        """Log nothing."""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:{silent}/mlflow", "[Cc]onnection timeout expired"),
        ("postgresql+psycopg://me:secret@127.0.0.1:1/mlflow", "Connection refused.*; start the server, or give"),
        ("postgresql+pg8000://me:secret@127.0.0.1/mlflow", "No module named 'pg8000'; install the driver"),
        ("http://me:secret@127.0.0.1:1", "no MLflow server answers: .*Connection refused; start it, or give another"),
        ("http://nowhere.invalid:1", "no MLflow server answers: Failed to resolve 'nowhere.invalid'"),
        ("http://me:secret@127.0.0.1:{silent}", r"no MLflow server answers: Read timed out\. .read timeout=1"),
        ("http://me:secret@127.0.0.1:{other}", "the MLflow server refuses requests: status 404"),
    ],
)
def test_unusable_server(address: str, reason: str, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line, without the password, at once; MLflow itself would try for minutes."""
    if address.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent, HTTPServer(("127.0.0.1", 0), Refusing) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        uri = address.format(silent=silent.getsockname()[1], other=other.server_port)
        with pytest.raises(ConnectionError) as raised:
            store_module.finished_training(tracking.model_copy(update={"uri": uri}), "k")
        with monkeypatch.context() as busy:
            busy.setattr(Refusing, "status", 503)
            store_module.check_server(f"http://localhost:{other.server_port}")  # requests are tried again later
        other.shutdown()
    (line,) = store_module.error_lines(raised.value) or []
    assert re.search(reason, line)
    assert line.startswith(f"error: {uri.replace('me:secret', '***')}: ")
    assert store_module.URI_VARIABLE not in os.environ, "which would overrule the next configuration"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ, "which would hold for all later requests"


def test_the_file_of_a_store_in_a_folder_with_special_characters(
    tracking: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own address of a database in the current folder has %20 in place of a space."""
    folder = tmp_path / "a b é"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(tmp_path / "mlflow.db", folder)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    for uri in (store_module.existing_store(), f"sqlite:///{folder}/mlflow.db"):
        assert store_module.database_file(uri) == folder / "mlflow.db"
    assert store_module.database_file("http://127.0.0.1:5000") is None


@pytest.mark.parametrize("place", ["copy", "copy/.dvc/tmp/exps/standalone/tmp1", ".dvc/tmp/exps/tmp2", "link"])
def test_copies_use_the_store_and_the_checkpoints_of_the_main_checkout(
    place: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC deletes its copies, and git its worktrees; a link to the checkout is the checkout."""
    main = tmp_path / "a main%20"
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(main)]
    main.mkdir()
    for command in ("init", "commit --allow-empty -m first", "worktree add copy"):
        subprocess.run([*git, *command.split()], check=True, capture_output=True)
    (main / "link").symlink_to(main)
    if not (main / place).exists():
        (main / place / ".git").mkdir(parents=True)
    monkeypatch.chdir(main / place)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    tracking = TrackingConfig(uri="sqlite:///mlflow.db", experiment="hlorank", artifacts="mlartifacts")
    shutil.copy(tmp_path / "mlflow.db", main)
    with store_module.open_run(tracking, "name", {}):
        mlflow.log_text("text", "note.txt")
    assert [file.relative_to(main).parts[0] for file in main.rglob("note.txt")] == ["mlartifacts"]
    mlflow.set_tracking_uri(None)
    assert store_module.database_file(store_module.existing_store()) == main / "mlflow.db"
    paths = PathsConfig(**{name: f"{name}/a" for name in PathsConfig.model_fields})
    assert (Path(paths.state).resolve(), paths.models) == (main / "state/a", "models/a")


def test_a_project_that_was_copied_or_moved(
    tracking: TrackingConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (tmp_path / "home").symlink_to(tmp_path)
    old.mkdir()

    def train(place: Path, name: str) -> str:
        monkeypatch.chdir(place)
        here = TrackingConfig(uri=f"sqlite:///{place}/mlflow.db", experiment="hlorank", artifacts="artifacts")
        with store_module.open_run(here, name, {}) as (run, _):
            mlflow.log_text(name, "note.txt")
        return run

    shutil.copy(tmp_path / "mlflow.db", old)
    first = train(old, "first")
    shutil.copytree(old, new)
    assert not caplog.messages
    second = train(new, "second")
    (message,) = caplog.messages
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    assert message.endswith(f"scripts/relocate.py {old}/artifacts {new}/artifacts")
    assert relocate(old / "artifacts", new / "artifacts") == 3  # of the experiment, and of two runs
    shutil.rmtree(old)
    third = train(tmp_path / "home/new", "third")
    assert len(caplog.messages) == 1
    for run, name in ((first, "first"), (second, "second"), (third, "third")):
        assert (new / "artifacts" / run / "artifacts/note.txt").read_text() == name
        assert mlflow.artifacts.load_text(f"runs:/{run}/note.txt") == name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    (tmp_path / "mlflow.db").write_text("no database")
    monkeypatch.setattr("sys.argv", ["relocate.py", "a", "b"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: ")
