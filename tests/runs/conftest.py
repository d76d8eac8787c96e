"""Fixtures of runs: a configuration, its store, and models with runs in a store that only one test uses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from hlorank.config import Config
from hlorank.files import SPEC, read_json, write_json

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
    import mlflow

    shutil.copy(tracking_database, tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = mlflow.create_experiment("some", artifact_location=(tmp_path / "artifacts").as_uri())

    def make(
        metrics: dict[str, float],
        tags: dict[str, str] | None = None,
        parameters: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        folder = linear_model(**changes)
        data = read_json(folder / SPEC)["data"]
        with mlflow.start_run(experiment_id=experiment, tags={"data": data, **(tags or {})}) as run:
            mlflow.log_params({"seed": 7, **(parameters or {})})
            mlflow.log_metrics(metrics)
        write_json(folder / "run.json", {"run_id": run.info.run_id, "tracking_uri": mlflow.get_tracking_uri()})
        return folder

    return make
