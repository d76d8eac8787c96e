"""What every training leaves behind, whatever it trains: an MLflow run, and files beside the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from hlorank.config import Config
from hlorank.files import HISTORY, RUN, write_json, write_text
from hlorank.models.serialization import Spec
from hlorank.sweeps.jobs import adopt, current_job, finished_training
from hlorank.tracking import BEST_TAU, FEATURES, FINGERPRINT, TRAIN_SECONDS, flatten, open_run, tracking_uri

log = logging.getLogger(__name__)


_COLUMNS = ["member", "epoch", "train_loss", "valid_kendall_tau", "step_seconds"]


@contextmanager
def training_run(
    config: Config, spec: Spec, identity: str, features: str, trained: bool, earlier: str | None = None
) -> Iterator[str]:
    """Opens the MLflow run of a training, with the configuration as its parameters.

    Args:
        config: the whole configuration.
        spec: what is trained.
        identity: the fingerprint of the training; another run that has it is of the same.
        features: the fingerprint of the features that it is trained and validated on.
        trained: whether there is anything to train on.
        earlier: a run to go on with, if the store still has it.

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
    # What tells runs apart comes first: MLflow's tables and legends cut names off.
    name = f"{spec.method} seed {config.seed} {spec.collection}"
    with open_run(config.tracking, name, tags, earlier) as (run_id, resumed):
        if resumed:
            adopt(config.tracking, run_id)
        else:
            mlflow.log_params(flatten(config.model_dump(mode="json")))
        yield run_id


def take_finished(config: Config, identity: str) -> float | None:
    """In a sweep, the validation Kendall tau of the run that has finished this training before, if there is one.

    The run then stands in the table of the sweep.
    """
    if current_job() is None or (finished := finished_training(config.tracking, identity)) is None:
        return None
    run_id, tau = finished
    log.info("run %s has finished this training: validation Kendall tau %.4f", run_id, tau)
    adopt(config.tracking, run_id)
    return tau


@contextmanager
def alone(config: Config, identity: str) -> Iterator[None]:
    """Waits while another process is at the same training."""
    path = Path(config.paths.state) / "locks" / identity
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process is at this training: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def keep_record(
    config: Config,
    run_id: str,
    history: Sequence[dict[str, float | None]],
    output: Path,
    best: float | None,
    seconds: float,
) -> None:
    """Writes the history and the name of the run into the model folder, and the folder into the open run.

    Args:
        config: the whole configuration.
        run_id: the run.
        history: a row for each epoch: member (of an ensemble, 0 where it is left out), epoch, train_loss,
            valid_kendall_tau, step_seconds.
        output: the model folder.
        best: validation Kendall tau of what is kept, None where no graph could be validated.
        seconds: what the training took.
    """
    import mlflow

    rows = [{"member": 0, **row} for row in history]
    write_text(output / HISTORY, pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False))
    write_json(output / RUN, {"run_id": run_id, "tracking_uri": tracking_uri(config.tracking)})
    mlflow.log_artifacts(str(output), "model")
    # A member alone has logged its time at each epoch: a curve, which another value would spoil.
    total = {} if len({row["member"] for row in rows}) == 1 else {TRAIN_SECONDS: seconds}
    # Last: what has the best tau is complete.
    mlflow.log_metrics(total if best is None else total | {BEST_TAU: best})
