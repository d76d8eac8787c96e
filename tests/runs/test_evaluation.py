"""Evaluations in the runs of their trainings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import read_json, write_json
from hlorank.metrics import BEST_TAU
from hlorank.models.graph_inputs import GraphLoader
from hlorank.runs.evaluation import LOGGED, TABLE, EvaluationRun
from hlorank.runs.store import FINGERPRINT, finished_training

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
