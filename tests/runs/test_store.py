"""The MLflow store: its creation, its servers, and runs that end in any way."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import DatabaseError

from hlorank.config import Config, TrackingConfig
from hlorank.metrics import BEST_TAU
from hlorank.runs.store import (
    FINGERPRINT,
    PARENT_VARIABLE,
    URI_VARIABLE,
    Pruned,
    _make_database,
    check_server,
    database_file,
    error_lines,
    existing_store,
    finished_training,
    open_experiment,
    open_run,
    tracking_uri,
)


@pytest.fixture
def tracking(settings: Callable[..., Config]) -> TrackingConfig:
    return settings().tracking


def client(config: TrackingConfig) -> MlflowClient:
    return MlflowClient(config.uri)


def runs(config: TrackingConfig) -> list[Any]:
    experiment = client(config).get_experiment_by_name(config.experiment)
    return list(client(config).search_runs([experiment.experiment_id]))


def test_a_new_run(tracking: TrackingConfig, tmp_path: Path) -> None:
    with open_run(tracking, "name", {"method": "gst"}) as (run_id, resumed):
        mlflow.log_metric("loss", 1.5)
        mlflow.log_text("text", "note.txt")
    assert not resumed
    (run,) = runs(tracking)
    assert (run.info.run_id, run.info.run_name, run.info.status) == (run_id, "name", "FINISHED")
    assert run.data.tags["method"] == "gst"
    assert run.data.metrics == {"loss": 1.5}
    assert [path.name for path in (tmp_path / "artifacts").rglob("*.txt")] == ["note.txt"]


def test_a_run_is_resumed_in_its_own_experiment(tracking: TrackingConfig) -> None:
    with open_run(tracking, "first", {"a": "1"}) as (first, _):
        pass
    other = tracking.model_copy(update={"experiment": "other"})
    with open_run(other, "second", {}):
        pass
    with open_run(other, "third", {"a": "2"}, first) as (run_id, resumed):
        mlflow.log_metric("loss", 1.5)
    assert (run_id, resumed) == (first, True)
    assert len(runs(other)) == 1
    (run,) = runs(tracking)
    assert (run.info.run_name, run.data.tags["a"], run.data.metrics) == ("first", "1", {"loss": 1.5})
    assert run.info.status == "FINISHED"


def test_unknown_and_deleted_runs_give_way_to_new_ones(tracking: TrackingConfig) -> None:
    with open_run(tracking, "new", {}, "0" * 32) as (first, resumed):
        assert not resumed
    client(tracking).delete_run(first)
    with open_run(tracking, "newer", {}, first) as (second, resumed):
        assert not resumed
    assert [run.info.run_id for run in runs(tracking)] == [second] != [first]


@pytest.mark.parametrize(
    ("error", "status", "ended_by"),
    [(KeyError, "FAILED", None), (Pruned, "KILLED", "pruning"), (KeyboardInterrupt, "KILLED", None)],
)
def test_the_status_of_a_run_that_ends_early(
    error: type[BaseException], status: str, ended_by: str | None, tracking: TrackingConfig
) -> None:
    with pytest.raises(error), open_run(tracking, "name", {}):
        raise error
    (run,) = runs(tracking)
    assert (run.info.status, run.data.tags.get("ended_by")) == (status, ended_by)


def test_an_error_after_the_end_of_a_training_leaves_it_finished(tracking: TrackingConfig) -> None:
    """Such as a full disk while an evaluation is logged."""
    with open_run(tracking, "name", {FINGERPRINT: "k"}) as (run_id, _):
        mlflow.log_metric(BEST_TAU, 0.5)
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error), open_run(tracking, "name", {}, run_id):
            raise error
        (run,) = runs(tracking)
        assert run.info.status == "FINISHED"
    assert finished_training(tracking, "k") == (run_id, 0.5)


def test_finished_trainings(tracking: TrackingConfig) -> None:
    """The best tau, which is logged last of all, says that a training has finished, and not the status of its run."""
    assert finished_training(tracking, "k") is None
    ids = []
    for key, tau in (("k", None), ("other", 0.9), ("k", 0.5), ("k", 0.25)):
        with open_run(tracking, "name", {FINGERPRINT: key}) as (run_id, _):
            if tau is not None:
                mlflow.log_metric(BEST_TAU, tau)
        ids.append(run_id)
    assert finished_training(tracking, "k") == (ids[2], 0.5)
    client(tracking).update_run(ids[2], status="RUNNING")  # an evaluation was killed
    assert finished_training(tracking, "k") == (ids[2], 0.5)
    client(tracking).delete_run(ids[2])
    assert finished_training(tracking, "k") == (ids[3], 0.25)


def test_the_parent_of_a_sweep(tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(tracking, "alone", {}) as (parent, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    with open_run(tracking, "child", {}):
        pass
    by_name = {run.info.run_name: run.data.tags for run in runs(tracking)}
    assert "mlflow.parentRunId" not in by_name["alone"]
    assert by_name["child"]["mlflow.parentRunId"] == parent


def test_the_commit_of_the_current_folder(tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the folder that hlorank is installed in, as MLflow records it."""
    monkeypatch.setattr("mlflow.utils.git_utils.get_git_commit", lambda path: f"commit of {path}")
    with open_run(tracking, "name", {}):
        pass
    assert runs(tracking)[0].data.tags["mlflow.source.git.commit"] == f"commit of {Path.cwd()}"


def test_each_configuration_has_its_own_store_which_the_variable_overrides(
    tracking: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    other = tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/other.db"})
    for config, name in ((tracking, "first"), (other, "second"), (tracking, "third")):
        with open_run(config, name, {}):
            pass
    monkeypatch.setenv(URI_VARIABLE, other.uri)
    assert tracking_uri(tracking) == other.uri
    with open_run(tracking, "fourth", {}):
        pass
    assert sorted(run.info.run_name for run in runs(tracking)) == ["first", "third"]
    assert sorted(run.info.run_name for run in runs(other)) == ["fourth", "second"]


@pytest.mark.parametrize(
    ("uri", "located"),
    [("postgresql+psycopg://127.0.0.1/mlflow", True), ("http://me:secret@127.0.0.1:5000", False)],
)
def test_only_databases_get_an_artifact_location(
    uri: str, located: bool, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = list[str | None]()
    monkeypatch.setattr("hlorank.runs.store.check_server", lambda uri: None)
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: None)
    monkeypatch.setattr(
        mlflow, "create_experiment", lambda name, artifact_location, tags: created.append(artifact_location)
    )
    monkeypatch.setattr(mlflow, "set_experiment", lambda name: SimpleNamespace(experiment_id="7"))
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "")
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    assert open_experiment(tracking.model_copy(update={"uri": uri})) == "7"
    assert created == [Path(tracking.artifacts).as_uri() if located else None]
    assert ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT" in os.environ) == ("secret" in uri)


def test_a_database_whose_creation_was_stopped_is_created_again(
    tracking: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow cannot continue a creation: no part of one is ever in the place of the database."""
    from mlflow.store.tracking import sqlalchemy_store

    made = tmp_path / "made.db"
    (tmp_path / "mlflow.db").rename(made)
    store = sqlalchemy_store.SqlAlchemyStore

    def create(uri: str, root: str) -> Any:
        partial = Path(uri.removeprefix("sqlite:///"))
        if partial.name == "mlflow.db":  # the request afterwards
            return store(uri, root)
        shutil.copy(made, partial)
        assert not (tmp_path / "mlflow.db").exists()
        if stopped:
            raise KeyboardInterrupt
        return SimpleNamespace(engine=SimpleNamespace(dispose=lambda: None))

    with monkeypatch.context() as patch:
        patch.setattr(sqlalchemy_store, "SqlAlchemyStore", create)
        for stopped in (True, False):
            with pytest.raises(KeyboardInterrupt) if stopped else nullcontext():
                _make_database(tracking.uri, tmp_path / "mlflow.db")
            assert (tmp_path / "mlflow.db").exists() != stopped
            assert not list(tmp_path.glob(".mlflow.db*"))
    with open_run(tracking, "name", {}):
        pass
    assert len(runs(tracking)) == 1


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_new_store(tmp_path: Path) -> None:
    """Without the database, and without the experiment."""
    code = (
        "import sys\n"
        "from hlorank.config import TrackingConfig\n"
        "from hlorank.runs.store import open_run\n"
        "config = TrackingConfig(uri='sqlite:///mlflow.db', experiment='new', artifacts='artifacts')\n"
        "with open_run(config, sys.argv[1], {}):\n    pass"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TR")}
    commands = [[sys.executable, "-c", code, str(number)] for number in range(3)]
    started = [subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) for command in commands]
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    config = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db", experiment="new", artifacts="")
    assert sorted(run.info.run_name for run in runs(config)) == ["0", "1", "2"]


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
def test_a_server_that_cannot_be_used(
    address: str, reason: str, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line, without the password, at once; MLflow itself would try for minutes."""
    if address.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent, HTTPServer(("127.0.0.1", 0), Refusing) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        uri = address.format(silent=silent.getsockname()[1], other=other.server_port)
        with pytest.raises(ConnectionError) as raised:
            finished_training(tracking.model_copy(update={"uri": uri}), "k")
        other.shutdown()
    (line,) = error_lines(raised.value) or []
    assert re.search(reason, line)
    assert line.startswith(f"error: {uri.replace('me:secret', '***')}: ")
    assert URI_VARIABLE not in os.environ, "which would overrule the next configuration"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ, "which would hold for all later requests"


def test_a_busy_server_of_mlflow_is_tried_again_later() -> None:
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        check_server(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


class Refusing(BaseHTTPRequestHandler):
    """A server that is none of MLflow."""

    status = 404

    def do_GET(self) -> None:
        self.send_error(self.status)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (name of the base class)
        """Log nothing."""


class Busy(Refusing):
    status = 503


def test_an_error_of_the_store_names_it(tracking: TrackingConfig, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database " * 100)
    with pytest.raises(DatabaseError) as caught:
        finished_training(tracking.model_copy(update={"uri": f"sqlite:///{path}"}), "k")
    (line,) = error_lines(caught.value) or []
    assert str(path) in line


def test_the_file_of_a_store_in_a_folder_with_special_characters(
    tracking_database: Path, tracking_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own address of a database in the current folder has %20 in place of a space."""
    folder = tmp_path / "a b é"
    folder.mkdir()
    shutil.copy(tracking_database, folder / "mlflow.db")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    assert database_file(existing_store()) == folder / "mlflow.db"
    assert database_file(f"sqlite:///{folder}/mlflow.db") == folder / "mlflow.db"
    assert database_file("http://127.0.0.1:5000") is None
