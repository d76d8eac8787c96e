"""MLflow: one run a training, one parent run a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from hlorank.config import TrackingConfig, load

URI_VARIABLE = "MLFLOW_TRACKING_URI"
PARENT_VARIABLE = "HLORANK_PARENT_RUN"


def tracking_uri(config: TrackingConfig) -> str:
    """The tracking store: the variable MLFLOW_TRACKING_URI, else the configuration's."""
    return os.environ.get(URI_VARIABLE) or config.uri


def open_experiment(config: TrackingConfig) -> str:
    """Makes the configured experiment the current one, creates it where it does not exist, and returns its id."""
    import mlflow

    mlflow.set_tracking_uri(tracking_uri(config))
    if mlflow.get_experiment_by_name(config.experiment) is None:
        location = Path(config.artifacts).resolve().as_uri() if config.artifacts else None
        mlflow.create_experiment(config.experiment, artifact_location=location)
    experiment: str = mlflow.set_experiment(config.experiment).experiment_id
    return experiment


def _exists(run_id: str) -> bool:
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        mlflow.get_run(run_id)
    except MlflowException:
        return False
    return True


@contextmanager
def open_run(
    config: TrackingConfig, name: str, tags: Mapping[str, str], run_id: str | None = None
) -> Iterator[tuple[str, bool]]:
    """Opens a run, or goes on with `run_id` where the store still has it; an exception marks it as failed.

    Inside a sweep the run is a child of the sweep's run.

    Args:
        config: where the store is.
        name: the run's name.
        tags: the run's tags.
        run_id: a run to go on with.

    Yields:
        The run's id, and whether it is an earlier run that goes on.
    """
    import mlflow

    open_experiment(config)
    if run_id is not None and _exists(run_id):
        with mlflow.start_run(run_id=run_id):
            yield run_id, True
        return
    parent = os.environ.get(PARENT_VARIABLE)
    with mlflow.start_run(run_name=name, tags=dict(tags), parent_run_id=parent) as run:
        yield run.info.run_id, False


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters with dotted names, lists as text: what MLflow shows as columns."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _tracking_of(composed: DictConfig) -> TrackingConfig:
    """The tracking subtree of a composition that still holds Hydra's own."""
    return load(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])).tracking


class SweepRun(Callback):
    """A Hydra callback: opens one run a multirun, whose trainings become its children."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Opens the parent run and hands its id to the jobs through the environment."""
        from mlflow.tracking import MlflowClient

        tracking = _tracking_of(config)
        experiment = open_experiment(tracking)
        overrides = " ".join(config.hydra.overrides.task)
        client = MlflowClient(tracking_uri(tracking))
        run = client.create_run(experiment, run_name=f"sweep {overrides}", tags={"hlorank.sweep": overrides})
        os.environ[PARENT_VARIABLE] = run.info.run_id

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Closes the parent run."""
        from mlflow.tracking import MlflowClient

        if parent := os.environ.pop(PARENT_VARIABLE, None):
            MlflowClient(tracking_uri(_tracking_of(config))).set_terminated(parent)
