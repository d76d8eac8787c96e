"""What every training leaves behind, whatever it trains: an MLflow run, and files beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from hlorank.config import Config, to_plain
from hlorank.io import write_json, write_text
from hlorank.models.folder import Spec
from hlorank.tracking import flatten, open_run, tracking_uri

HISTORY, RUN = "history.csv", "run.json"

_COLUMNS = ["member", "epoch", "train_loss", "valid_kendall_tau", "step_seconds"]


@contextmanager
def training_run(config: Config, spec: Spec, trained: bool, earlier: str | None = None) -> Iterator[str]:
    """Opens the MLflow run of a training, with the configuration as its parameters.

    Args:
        config: the whole configuration.
        spec: what is trained.
        trained: whether there is anything to train on.
        earlier: a run to go on with, if the store still has it.

    Yields:
        The run's id.
    """
    import mlflow

    tags = {"collection": spec.collection, "method": spec.method, "data": spec.data, "trained": str(trained)}
    name = f"{spec.collection} {spec.method} seed {config.seed}"
    with open_run(config.tracking, name, tags, earlier) as (run_id, resumed):
        if not resumed:
            mlflow.log_params(flatten(to_plain(config)))
        yield run_id


def keep_record(config: Config, run_id: str, history: Sequence[dict[str, float | None]], output: Path) -> None:
    """Writes the history and the name of the run into the model folder, and the folder into the open run.

    Args:
        config: the whole configuration.
        run_id: the run.
        history: a row for each epoch: member (of an ensemble, 0 where it is left out), epoch, train_loss,
            valid_kendall_tau, step_seconds.
        output: the model folder.
    """
    import mlflow

    rows = [{"member": 0, **row} for row in history]
    write_text(output / HISTORY, pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False))
    write_json(output / RUN, {"run_id": run_id, "tracking_uri": tracking_uri(config.tracking)})
    mlflow.log_artifacts(str(output), "model")
