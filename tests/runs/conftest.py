"""Fixtures of runs: a configuration, its store, and models with runs in the store of one test."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.tracking import MlflowClient

from hlorank.config import Config
from hlorank.files import SPEC, read_json, write_json
from hlorank.runs.store import SWEEP

MakeRun = Callable[..., Path]


@pytest.fixture
def config(settings: Callable[..., Config]) -> Config:
    return settings()


@pytest.fixture
def client(config: Config) -> MlflowClient:
    return MlflowClient(config.tracking.uri)


@pytest.fixture
def make_run(
    linear_model: Callable[..., Path], tracking_database: Path, tracking_environment: None, tmp_path: Path
) -> MakeRun:
    """Function that makes a model folder and its run of metrics, tags, parameters and changes of the specification."""
    shutil.copy(tracking_database, tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = mlflow.create_experiment("hlorank", artifact_location=(tmp_path / "artifacts").as_uri())

    def make(
        metrics: dict[str, float] | None = None,
        tags: dict[str, str] | None = None,
        parameters: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        folder = linear_model(**changes)
        (folder / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,0.5,0.25\n")
        data = read_json(folder / SPEC)["data"]
        with mlflow.start_run(experiment_id=experiment, tags={"data": data, **(tags or {})}) as run:
            mlflow.log_params({"seed": 7, **(parameters or {})})
            mlflow.log_metrics(metrics or {})
            write_json(folder / "run.json", {"run_id": run.info.run_id, "tracking_uri": mlflow.get_tracking_uri()})
            mlflow.log_artifacts(str(folder), "model")
        return folder

    return make


def run_of(folder: Path) -> str:
    """Return the id of the run of a model folder."""
    return str(read_json(folder / "run.json")["run_id"])


def sweeps(client: MlflowClient) -> list[Any]:
    """Return the runs of sweeps, the latest first; none before the experiment is made."""
    experiments = [one.experiment_id for one in client.search_experiments() if one.name == "hlorank"]
    return [run for run in client.search_runs(experiments) if SWEEP in run.data.tags] if experiments else []


def children(client: MlflowClient, parent: Any) -> list[Any]:
    """Return the runs that are children of a sweep's run."""
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    return list(client.search_runs([parent.info.experiment_id], wanted))


def jobs(client: MlflowClient, parent: Any) -> list[dict[str, str]]:
    """Return the rows of the table of a sweep."""
    with Path(client.download_artifacts(parent.info.run_id, "sweep/jobs.csv")).open(newline="") as file:
        return list(csv.DictReader(file))
