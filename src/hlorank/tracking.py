"""MLflow: one run a training, one parent run a sweep."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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


def _connect(config: TrackingConfig) -> str:
    import mlflow

    uri, by_variable = tracking_uri(config), URI_VARIABLE in os.environ
    mlflow.set_tracking_uri(uri)
    if not by_variable:
        # MLflow may set the variable itself, which would overrule the next configuration in this process.
        os.environ.pop(URI_VARIABLE, None)
    return uri


def open_experiment(config: TrackingConfig) -> str:
    """Makes the configured experiment the current one, creates it where it does not exist, and returns its id."""
    import mlflow

    uri = _connect(config)
    if mlflow.get_experiment_by_name(config.experiment) is None:
        # A server knows where its artifacts go, also where the variable puts one in the place of a local store.
        location = Path(config.artifacts).resolve().as_uri() if uri.startswith("sqlite:") else None
        mlflow.create_experiment(config.experiment, artifact_location=location)
    experiment: str = mlflow.set_experiment(config.experiment).experiment_id
    return experiment


def _experiment_of(run_id: str) -> str | None:
    """The experiment of a run, None if the store has no such run, or had it."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        info = mlflow.get_run(run_id).info
    except MlflowException:
        return None
    return info.experiment_id if info.lifecycle_stage == "active" else None


def _git_commit() -> dict[str, str]:
    """The tag with the commit of the current folder; MLflow alone looks where the package is installed."""
    from mlflow.utils.git_utils import get_git_commit
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

    commit = get_git_commit(str(Path.cwd()))
    return {} if commit is None else {MLFLOW_GIT_COMMIT: commit}


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

    _connect(config)
    if run_id is not None and (experiment := _experiment_of(run_id)) is not None:
        mlflow.set_experiment(experiment_id=experiment)
        with mlflow.start_run(run_id=run_id):
            yield run_id, True
        return
    open_experiment(config)
    parent = os.environ.get(PARENT_VARIABLE)
    with mlflow.start_run(run_name=name, tags={**tags, **_git_commit()}, parent_run_id=parent) as run:
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
    """A Hydra callback: opens one run a multirun of trainings, which become its children."""

    _close: Callable[[str], None] | None = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Opens the parent run and hands its id to the jobs through the environment."""
        if config.hydra.job.name != "train":
            return
        from mlflow.tracking import MlflowClient

        tracking = _tracking_of(config)
        experiment = open_experiment(tracking)
        overrides = " ".join(config.hydra.overrides.task)
        client = MlflowClient(tracking_uri(tracking))
        run = client.create_run(experiment, run_name=f"sweep {overrides}", tags={"hlorank.sweep": overrides})
        os.environ[PARENT_VARIABLE] = run.info.run_id
        self._close = partial(client.set_terminated, run.info.run_id)
        atexit.register(self._close, "FAILED")  # where a job fails, Hydra ends without on_multirun_end

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Closes the parent run."""
        if self._close is not None:
            del os.environ[PARENT_VARIABLE]
            atexit.unregister(self._close)
            self._close("FINISHED")
