"""Record of a training, of whatever kind of model: its MLflow run, and the files next to the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from lightning.pytorch.loggers import MLFlowLogger

from hlorank.config import TrackingConfig
from hlorank.files import HISTORY, RUN, read_json, redact_credentials, write_json, write_text
from hlorank.models.serialization import Spec
from hlorank.sweeps.jobs import adopt, current_job, finished_training
from hlorank.tracking import BEST_TAU, FEATURES, FINGERPRINT, TRAIN_SECONDS, flatten, open_run, tracking_uri

log = logging.getLogger(__name__)


_COLUMNS = ["member", "epoch", "train_loss", "valid_kendall_tau", "step_seconds"]


@contextmanager
def one_process(state: Path, identity: str) -> Iterator[None]:
    """Wait while another process runs the same training, and keep others waiting meanwhile.

    Args:
        state: the folder `paths.state`.
        identity: the fingerprint of the training.
    """
    path = state / "locks" / identity
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process runs this training: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def take_finished(config: TrackingConfig, identity: str) -> float | None:
    """Return the validation Kendall tau of a run that has finished this training before; None outside of sweeps.

    The sweep's table then lists that run.
    """
    if current_job() is None or (finished := finished_training(config, identity)) is None:
        return None
    run_id, tau = finished
    log.info("run %s has finished this training: validation Kendall tau %.4f", run_id, tau)
    adopt(config, run_id)
    return tau


@contextmanager
def training_run(
    config: TrackingConfig,
    spec: Spec,
    parameters: Mapping[str, Any],
    identity: str,
    features: str,
    trained: bool,
    resume: Path | None = None,
) -> Iterator[str]:
    """Open the MLflow run of a training.

    Args:
        config: the tracking store and its experiment.
        spec: describes the model.
        parameters: the whole configuration, as plain values.
        identity: the fingerprint of the training; runs that have the same are repetitions of it.
        features: the fingerprint of the features that it is trained and validated on.
        trained: False if the collection has no graph to train on.
        resume: file that names the run until the training has finished, so that a resumed training continues it.

    Yields:
        The run's id.
    """
    import mlflow

    job = current_job()
    tags = {
        "collection": spec.collection,
        "method": spec.method,
        "data": spec.data,
        "trained": str(trained),
        FINGERPRINT: identity,
        FEATURES: features,
        **({} if job is None else job.tags),
    }
    # MLflow's tables and legends truncate names, so the part in which runs differ comes first.
    name = f"{spec.method} seed {parameters['seed']} {spec.collection}"
    earlier = read_json(resume)["run_id"] if resume is not None and resume.exists() else None
    with open_run(config, name, tags, earlier) as (run_id, resumed):
        if resumed:
            adopt(config, run_id)
        else:
            mlflow.log_params(flatten(parameters))
        if resume is not None:
            write_json(resume, {"run_id": run_id})
        yield run_id


class MemberLogger(MLFlowLogger):
    """Logger into the run of a training; metrics of an ensemble's member are logged under its name.

    Args:
        config: the tracking store and its experiment.
        run_id: the run.
        member: the member's name; empty for a single model.
    """

    LOGGER_JOIN_CHAR = "/"

    def __init__(self, config: TrackingConfig, run_id: str, member: str) -> None:
        super().__init__(config.experiment, tracking_uri=tracking_uri(config), run_id=run_id, prefix=member)


def keep_record(
    config: TrackingConfig,
    run_id: str,
    history: Sequence[Mapping[str, float | None]],
    output: Path,
    best: float | None,
    seconds: float,
) -> None:
    """Write the history and the name of the run into the model folder, and log the folder into the open run.

    Args:
        config: the tracking store and its experiment.
        run_id: the run.
        history: a row for each epoch: member (of an ensemble, 0 if left out), epoch, train_loss, valid_kendall_tau,
            step_seconds.
        output: the model folder.
        best: validation Kendall tau of the model that is kept, None if no graph can be validated.
        seconds: time of the training.
    """
    import mlflow

    rows = [{"member": 0, **row} for row in history]
    write_text(output / HISTORY, pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False))
    write_json(output / RUN, {"run_id": run_id, "tracking_uri": redact_credentials(tracking_uri(config))})
    mlflow.log_artifacts(str(output), "model")
    # A single model has logged its time in each epoch: a curve, to which another value would not belong.
    total = {} if len({row["member"] for row in rows}) == 1 else {TRAIN_SECONDS: seconds}
    # Last of all, so that a run with a best tau is complete.
    mlflow.log_metrics(total if best is None else total | {BEST_TAU: best})
