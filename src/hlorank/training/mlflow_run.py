"""Record of a training, of whatever kind of model: its MLflow run, and the files next to the model."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pandas as pd
import torch

from hlorank.config import TrackingConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import (
    HISTORY,
    RUN,
    SPEC,
    code_digest,
    flatten,
    read_json,
    redact_credentials,
    write_atomic,
    write_json,
    write_text,
)
from hlorank.metrics import BEST_TAU, EXPERIMENT, TRAIN_SECONDS
from hlorank.models.serialization import Spec
from hlorank.runs.store import (
    CHECKOUT,
    CODE,
    FEATURES,
    FINGERPRINT,
    NOTE,
    NOTE_LENGTH,
    checkout,
    finished_training,
    open_run,
    tracking_uri,
)
from hlorank.runs.sweeps import chosen_experiment, claim, in_sweep, job_tags, task_overrides
from hlorank.training.run_description import log_data, run_name, run_note

log = logging.getLogger(__name__)

_DVC_VARIABLE = "DVC_STAGE"  # which DVC sets for its commands
_COLUMNS = ["member", "epoch", "train_loss", "valid_kendall_tau"]


def take_finished(config: TrackingConfig, identity: str, output: Path, locks: Path, *, waited: bool) -> float | None:
    """Return the validation Kendall tau of a run that has finished this training before; None to train.

    In a sweep, any such run is taken, and the sweep's table then lists it. Elsewhere the run must be one of this
    checkout and of the same code, and its model is written to `output`. It is taken by a process that waited for the
    training, and under DVC, which starts a training again if it was killed before it recorded the end.

    Args:
        config: the tracking store and its experiment.
        identity: the fingerprint of the training.
        output: the model folder.
        locks: folder of locks.
        waited: another process ran the training meanwhile.
    """
    if sweeping := in_sweep():
        finished = finished_training(config, identity)
    elif waited or _DVC_VARIABLE in os.environ:
        finished = finished_training(config, identity, {CODE: _code(), CHECKOUT: checkout(locks)})
    else:
        return None
    if finished is None:
        return None
    run_id, tau = finished
    if not sweeping and not _restored(config, run_id, output):
        return None
    log.info("run %s has finished this training: validation Kendall tau %.4f", run_id, tau)
    claim(config, run_id)
    return tau


def _code() -> str:
    return code_digest("hlorank")


def _restored(config: TrackingConfig, run_id: str, output: Path) -> bool:
    """Copy the model of a run into a folder; return False if the store does not have it any more."""
    import mlflow
    from mlflow.exceptions import MlflowException

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", str(sys.stderr.isatty()))  # no bars in logs
    with TemporaryDirectory() as folder:
        try:
            uri = tracking_uri(config)
            model = mlflow.artifacts.download_artifacts(
                run_id=run_id, artifact_path="model", dst_path=folder, tracking_uri=uri
            )
        except (MlflowException, OSError):
            return False
        for file in sorted(Path(model).iterdir(), key=lambda file: file.name == SPEC):  # a folder with it is complete
            write_atomic(output / file.name, partial(_copy, file))
    return True


def _copy(source: Path, target: IO[bytes]) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target)


@contextmanager
def training_run(
    config: TrackingConfig,
    spec: Spec,
    parameters: Mapping[str, Any],
    identity: str,
    store: FeatureStore,
    locks: Path,
    resume: Path | None = None,
) -> Iterator[str]:
    """Open the MLflow run of a training.

    Args:
        config: the tracking store and its experiment.
        spec: describes the model.
        parameters: the settings that the training reads and those that its data were made with, by section.
        identity: the fingerprint of the training; runs that have the same are repetitions of it.
        store: the graphs that it is trained and validated on.
        locks: folder of locks.
        resume: file that names the run until the training has finished, so that a resumed training continues it.

    Yields:
        The run's id.
    """
    import mlflow

    overrides = task_overrides()
    tags = {
        "collection": spec.collection,
        "method": spec.method,
        "data": spec.data,
        "trained": str(bool(store.trainable("train"))),
        FINGERPRINT: identity,
        CODE: _code(),
        CHECKOUT: checkout(locks),
        FEATURES: store.fingerprint,
        NOTE: run_note(spec, store, overrides)[:NOTE_LENGTH],
        **({EXPERIMENT: name} if (name := chosen_experiment()) else {}),
        **job_tags(),
    }
    name = run_name(spec, parameters["seed"], overrides)
    earlier = read_json(resume)["run_id"] if resume is not None and resume.exists() else None
    with open_run(config, name, tags, earlier) as (run_id, resumed):
        if resumed:
            claim(config, run_id)
        else:
            mlflow.log_params(flatten(parameters))
            log_data(spec, store)
        if resume is not None:
            write_json(resume, {"run_id": run_id})
        yield run_id


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
        history: a row for each epoch: member (of an ensemble, 0 if left out), epoch, train_loss, valid_kendall_tau;
            other keys are not written, as times would differ between equal trainings.
        output: the model folder.
        best: validation Kendall tau of the model that is kept, None if no graph can be validated.
        seconds: time of the training.
    """
    import mlflow

    rows = [{"member": 0, **row} for row in history]
    write_text(output / HISTORY, pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False))
    address = redact_credentials(tracking_uri(config))
    model = read_json(output / SPEC)["spec_sha256"]
    run = {"run_id": run_id, "tracking_uri": address, EXPERIMENT: chosen_experiment(), "model": model}
    write_json(output / RUN, run)
    mlflow.log_artifacts(str(output), "model")
    # A single model has logged its time in each epoch: a curve, to which another value would not belong.
    total = {} if len({row["member"] for row in rows}) == 1 else {TRAIN_SECONDS: seconds}
    # Last of all, so that a run with a best tau is complete.
    mlflow.log_metrics(total if best is None else total | {BEST_TAU: best})
    # Several members have a mean tau, and a finetuned head has one of its own.
    epoch = next(
        (f" of epoch {row['epoch']}" for row in rows if best is not None and row["valid_kendall_tau"] == best), ""
    )
    tau = "" if best is None else f", validation Kendall tau {best:.4f}"
    log.info("%s: model%s%s, MLflow run %s", output, epoch, tau, run_id)


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far; on CUDA the largest allocation on the device."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
