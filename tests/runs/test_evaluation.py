"""Evaluations in the runs of their trainings."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.tracking import MlflowClient

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, write_json
from hlorank.metrics import BEST_TAU
from hlorank.models.graph_inputs import GraphLoader
from hlorank.runs.evaluation import LOGGED, TABLE, EvaluationRun, find_runs, tracked
from hlorank.runs.store import FINGERPRINT, SWEEP, finished_training
from hlorank.runs.sweeps import _record_failure

MakeModel = Callable[..., Path]


@pytest.fixture
def model(config: Config, client: MlflowClient, linear_model: MakeModel, tmp_path: Path) -> Path:
    """Model folder whose training has finished."""
    features = Path(config.paths.features) / Collection.parse(config.collection).path
    data = GraphLoader(features, None).fingerprint
    folder = Path(shutil.copytree(linear_model(data=data), tmp_path / "model"))
    artifacts = (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment(config.tracking.experiment, artifact_location=artifacts)
    run_id = client.create_run(experiment, tags={FINGERPRINT: "key"}).info.run_id
    client.log_metric(run_id, BEST_TAU, 0.5)
    client.set_terminated(run_id, "FINISHED")
    write_json(folder / "run.json", {"run_id": run_id, "tracking_uri": config.tracking.uri})
    return folder


def evaluated(config: Config, model: Path, output: Path) -> dict[str, float]:
    run = EvaluationRun(config, model)
    metrics = evaluate(config, model, output)
    run.log(metrics, output)
    return metrics


def runs(client: MlflowClient) -> list[Any]:
    return list(client.search_runs([found.experiment_id for found in client.search_experiments()]))


def test_metrics_join_the_run_of_the_training(
    config: Config, client: MlflowClient, model: Path, tmp_path: Path
) -> None:
    assert EvaluationRun(config, model).tracked is not None
    for _ in range(2):
        metrics = evaluated(config, model, tmp_path / "report")
    (run,) = runs(client)
    assert run.info.status == "FINISHED"
    logged = {f"evaluate/{name}": value for name, value in metrics.items() if name.rpartition("/")[2] in LOGGED}
    assert {"evaluate/valid/kendall_tau", "evaluate/test/slowdown_5"} <= logged.keys()
    assert {key: value for key, value in run.data.metrics.items() if key.startswith("evaluate/")} == logged
    store = FeatureStore(Path(config.paths.features) / Collection.parse(config.collection).path)
    assert run.data.tags["features"] == store.fingerprint
    assert run.data.tags["model"] == read_json(model / "spec.json")["spec_sha256"]
    (report,) = (tmp_path / "artifacts").rglob("report")
    assert {path.name for path in report.iterdir()} == {path.name for path in (tmp_path / "report").iterdir()}
    (path,) = (tmp_path / "artifacts").rglob(TABLE)
    table = read_json(path)
    assert table["columns"][:2] == ["graph", "kendall_tau"], "what MLflow groups by and shows"
    names = [f"valid/synthetic_valid_{number:03d}" for number in (0, 1)]
    assert [row[0] for row in table["data"]] == [*names, "test/synthetic_test_000"], "once, after two evaluations"
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": TABLE, "type": "table"}]


@pytest.mark.parametrize("method", ["log_artifacts", "log_batch"])
def test_an_evaluation_that_cannot_be_logged_leaves_the_training_finished(
    config: Config,
    client: MlflowClient,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    run = EvaluationRun(config, model)
    metrics = evaluate(config, model, tmp_path / "report")
    monkeypatch.setattr(MlflowClient, method, fail)
    with pytest.raises(OSError, match="No space left"):
        run.log(metrics, tmp_path / "report")
    monkeypatch.undo()
    assert [found.info.status for found in runs(client)] == ["FINISHED"]
    assert finished_training(config.tracking, "key") is not None


def test_a_model_without_its_run_gets_one(
    config: Config, client: MlflowClient, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.delete_run(read_json(model / "run.json")["run_id"])
    files = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    assert EvaluationRun(config, model).tracked is None
    for _ in range(2):
        metrics = evaluated(config, model, tmp_path / "report")
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == files
    (own,) = runs(client)
    assert (own.data.tags["run"], own.info.status) == ("evaluated elsewhere", "FINISHED")
    assert own.data.metrics["evaluate/valid/slowdown_5"] == pytest.approx(metrics["valid/slowdown_5"])
    client.delete_run(own.info.run_id)
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EvaluationRun(config, model).log(metrics, tmp_path / "report")
    assert [found.info.status for found in runs(client)] == ["FAILED"]


@pytest.fixture
def tracked_model(
    linear_model: MakeModel, tracking_database: Path, tracking_environment: None, tmp_path: Path
) -> Callable[..., Path]:
    """Function that makes a model folder and its run, in the store MLFLOW_TRACKING_URI of the test's folder."""
    uri = f"sqlite:///{shutil.copy(tracking_database, tmp_path / 'mlflow.db')}"
    os.environ["MLFLOW_TRACKING_URI"] = uri
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("some", artifact_location=(tmp_path / "artifacts").as_uri())

    def make(parent: str | None = None, seed: int = 3) -> Path:
        folder = tmp_path / f"models/layout/synthetic/random/{seed}"
        shutil.copytree(linear_model(), folder)
        (folder / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,0.5,0.25\n")
        tags = {} if parent is None else {f"{SWEEP}.{parent}": json.dumps({"seed": seed})}
        run_id = client.create_run(experiment, tags=tags).info.run_id
        client.log_param(run_id, "seed", seed)
        client.log_metric(run_id, BEST_TAU, 0.25)
        for size in (7, 5):
            client.log_metric(run_id, "1/train/step_memory_bytes", size)
        write_json(folder / "run.json", {"run_id": run_id, "tracking_uri": uri})
        client.log_artifacts(run_id, str(folder), "model")
        client.set_terminated(run_id)
        return folder

    return make


def test_a_training_is_found_by_its_folder_and_by_its_run(tracked_model: Callable[..., Path]) -> None:
    model = tracked_model()
    run_id = read_json(model / "run.json")["run_id"]
    (of_folder,), (of_store,) = find_runs([str(model)]), find_runs([run_id])
    assert (of_store.place, of_store.method, of_store.spec) == (run_id, "linear_ranking", of_folder.spec)
    assert (of_store.history.equals(of_folder.history), of_store.tracked) == (True, of_folder.tracked)
    assert of_folder.tracked is not None
    assert (of_folder.seed, of_folder.tracked.step_memory_bytes, of_folder.tracked.seconds) == ("3", 7, None)
    assert [run.place for run in find_runs([run_id, str(model)])] == [str(model)], "one run, whatever it is called"


def test_a_sweep_is_replaced_by_its_trainings(
    tracked_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    parent = client.create_run(client.get_experiment_by_name("some").experiment_id).info.run_id
    for seed in (0, 1):
        tracked_model(parent, seed)
    _record_failure(client, parent, ["method=gst", "model.width=7"], ValueError("model.width=7: not even"))
    assert sorted(run.seed or "" for run in find_runs([parent])) == ["0", "1"]
    (warning,) = caplog.messages
    assert "method=gst" in warning
    assert "not even" in warning


def test_models_without_an_evaluation_are_scored_on_demand(tracked_model: Callable[..., Path]) -> None:
    model = tracked_model()

    def score(folder: Path, collection: Collection, output: Path) -> None:
        assert (folder / WEIGHTS).is_file()
        columns = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling"
        (output / "per_graph.csv").write_text(f"{columns}\nvalid,{collection.source},all,1,2,2,0.5,\n")

    for name in (read_json(model / "run.json")["run_id"], str(model)):
        assert find_runs([name])[0].per_graph.empty
        assert find_runs([name], score)[0].per_graph["graph"].tolist() == ["synthetic"]


def test_unknown_names_are_refused(
    tracked_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    other = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"]).create_run("0").info.run_id
    for name, complaint in (
        ("empty", "empty: no model and no report there"),
        ("nowhere", "nowhere: expected a folder, or the id of an MLflow run"),
        (other, f"{other}: no model and no report there"),
        ("e" * 32, rf"{'e' * 32}: .*MLflow store"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            find_runs([name])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
    with pytest.raises(DataError, match=r"none\.db: tracking store"):
        find_runs(["f" * 32])
    assert not (tmp_path / "none.db").exists(), "MLflow makes no database"


def test_a_folder_does_not_choose_the_store(
    tracked_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It might be somebody else's, and would get the user's credentials."""
    model, uri = tracked_model(), os.environ["MLFLOW_TRACKING_URI"]
    client, run_id = mlflow.MlflowClient(uri), read_json(model / "run.json")["run_id"]
    client.set_tag(run_id, "model", read_json(model / SPEC)["spec_sha256"])
    write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": "http://127.0.0.1:1"})
    found = tracked(model)
    assert found is not None
    assert found.run_id == run_id, "found by the digest of the model"
    client.delete_run(run_id)
    assert tracked(model) is None
    (warning,) = caplog.messages
    assert "http://127.0.0.1:1; set MLFLOW_TRACKING_URI" in warning
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://me@127.0.0.1:1/mlflow")
    assert tracked(model) is None
