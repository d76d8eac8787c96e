"""What is known of a training: its model folder, the report of its evaluation, and its MLflow run."""

from __future__ import annotations

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import PREDICTION_COLUMNS
from hlorank.evaluation.protocol import PER_GRAPH, PREDICTIONS
from hlorank.files import HISTORY, METRICS, RUN, SPEC, DataError, read_json
from hlorank.sweeps.jobs import rows
from hlorank.tracking import TRAIN_SECONDS, URI_VARIABLE

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LOCAL_STORE = "sqlite:///mlflow.db"
# As in hlorank.models.serialization and hlorank.training.mlflow_run, which import torch and pandas.
_FILES = {"model": (SPEC, HISTORY, RUN), "report": (METRICS, PER_GRAPH, PREDICTIONS)}
_ROOTS = ("models", "reports")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_PEAK = "train/peak_memory_bytes"  # below the name of a member of an ensemble
_TEXT = {"split", "graph", "protocol", "note"}  # columns that hold no number
_COLUMNS = {
    HISTORY: {"member", "epoch", "train_loss", "valid_kendall_tau", "step_seconds"},
    PER_GRAPH: {*_TEXT, "nodes", "configurations", "distinct", "kendall_tau", "noise_ceiling", "seconds"},
    PREDICTIONS: set(PREDICTION_COLUMNS),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Tracked:
    """What MLflow holds of a training.

    Attributes:
        run_id: the run.
        settings: the composed configuration, dotted names.
        commit: of git, None outside of a repository.
        parameters: numbers in the weights, None where they are not counted.
        peak_memory_bytes: the highest that an epoch reports, None where none does.
        seconds: of all epochs, validation included; None where they are not recorded.
    """

    run_id: str
    settings: Mapping[str, str]
    commit: str | None
    parameters: float | None
    peak_memory_bytes: float | None
    seconds: float | None


@dataclass(frozen=True)
class Run:
    """One training and its evaluation, as far as they are there.

    Attributes:
        place: the folder, or the MLflow run, that it was read from.
        collection: what it was trained on.
        method: how.
        spec: spec.json of the model; empty without it.
        history: rows of history.csv.
        per_graph: rows of per_graph.csv.
        predictions: rows of predictions.csv.
        tracked: its MLflow run, None where there is none in reach.
    """

    place: str
    collection: Collection
    method: str
    spec: Mapping[str, Any]
    history: Sequence[Row]
    per_graph: Sequence[Row]
    predictions: Sequence[Row]
    tracked: Tracked | None

    @property
    def seed(self) -> str | None:
        """The seed of the training, None where it is not recorded."""
        return None if self.tracked is None else self.tracked.settings.get("seed")


def find_runs(names: Sequence[str]) -> list[Run]:
    """The runs that names stand for, each once.

    Args:
        names: a model folder, such as models/layout/cpu/random/gst, or that of its report, which lies in the same
            place below reports/; a folder of several; the id of an MLflow run; that of a sweep, for its children.

    Raises:
        ConfigError: a name stands for nothing.
        DataError: a file is damaged.
    """
    runs: dict[str, Run] = {}
    for name in names:
        if (folder := Path(name)).is_dir():
            found = [read_run(*pair) for pair in _pairs(folder)]
        elif _RUN_ID.fullmatch(name):
            found = _tracked_runs(name)
        else:
            raise ConfigError(f"{name}: expected a folder, or the id of an MLflow run (32 hexadecimal digits)")
        if not found:
            raise ConfigError(f"{name}: no model and no report there; the stages train and evaluate write them")
        runs |= {run.tracked.run_id if run.tracked else run.place: run for run in found}
    return list(runs.values())


def _pairs(root: Path) -> list[tuple[Path, Path]]:
    """The model folders and report folders at and below a folder, each with its partner, there or not."""
    # Both kinds of data have files of one of these names; two of them are enough to tell.
    models = (file.parent for file in root.rglob(RUN) if file.with_name(SPEC).is_file())
    reports = (file.parent for file in root.rglob(PER_GRAPH) if file.with_name(METRICS).is_file())
    return sorted({_pair(folder) for folder in (*models, *reports)})


def _pair(folder: Path) -> tuple[Path, Path]:
    """models/<rest> and reports/<rest> for either; one folder twice if it lies below neither, as that of a job."""
    parts = folder.absolute().parts
    roots = [place for place, part in enumerate(parts) if part in _ROOTS]
    if not roots:
        return folder, folder
    model, report = (Path(*parts[: roots[-1]], root, *parts[roots[-1] + 1 :]) for root in _ROOTS)
    return model, report


def read_run(model: Path, report: Path, uri: str | None = None, place: str | None = None) -> Run:
    """Reads what there is of one training.

    Args:
        model: the model folder.
        report: the folder of its report.
        uri: the tracking store; None for MLFLOW_TRACKING_URI, or else the store that the model folder names.
        place: what to call the run; the folder that is there if it is None.

    Raises:
        DataError: a file is damaged, or nothing says which collection this is.
    """
    spec, run = (read_json(file) if file.is_file() else {} for file in (model / SPEC, model / RUN))
    folder = model if spec else report
    if place is None:
        place = str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)
    try:
        collection, method = Collection.parse(spec["collection"]), str(spec["method"])
    except KeyError:
        collection, method = _address(folder)
    store = uri or os.environ.get(URI_VARIABLE) or run.get("tracking_uri", LOCAL_STORE)
    tracked = _tracked(run["run_id"], store) if run else None
    tables = (_table(file) for file in (model / HISTORY, report / PER_GRAPH, report / PREDICTIONS))
    history, per_graph, predictions = tables
    return Run(place, collection, method, spec, history, per_graph, predictions, tracked)


def _address(folder: Path) -> tuple[Collection, str]:
    """Collection and method of a report whose model is gone, from its place."""
    *parts, method = folder.absolute().parts
    for length in (3, 2):
        try:
            return Collection.parse("/".join(parts[-length:])), method
        except ConfigError:
            continue
    raise DataError("folder", "<collection>/<method>, such as layout/cpu/random/gst", folder.name, file=folder)


def _table(path: Path) -> list[Row]:
    """The rows of a CSV file, numbers as float and what is empty as None; none without the file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if missing := _COLUMNS[path.name] - set(reader.fieldnames or ()):
            raise DataError("columns", f"{sorted(_COLUMNS[path.name])} among them", f"no {sorted(missing)}", file=path)
        try:
            return [
                {key: text if key in _TEXT else float(text) if text else None for key, text in row.items()}
                for row in reader
            ]
        except (ValueError, TypeError, csv.Error) as error:
            raise DataError("rows", "a table of numbers", error, file=path) from None


def _client(uri: str) -> MlflowClient | None:
    """A client of a store; None for a local one that does not exist, as MLflow would make it."""
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        return None
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def _tracked(run_id: str, uri: str) -> Tracked | None:
    """What a store holds of a run, None if it holds nothing, or can't be reached."""
    if (client := _client(uri)) is None:
        return None
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
        peaks = [
            one.value
            for key in run.data.metrics
            if key.endswith(_PEAK)
            for one in client.get_metric_history(run_id, key)
        ]
    except MlflowException:
        return None
    return Tracked(
        run_id=run_id,
        settings=run.data.params,
        commit=run.data.tags.get("mlflow.source.git.commit"),
        parameters=run.data.metrics.get("train/parameters"),
        peak_memory_bytes=max(peaks, default=None),
        seconds=run.data.metrics.get(TRAIN_SECONDS),
    )


def _tracked_runs(run_id: str) -> list[Run]:
    """The run of an id, or the children of a sweep, with what they hold as artifacts.

    Raises:
        ConfigError: the store has no such run, or can't be reached.
    """
    uri = os.environ.get(URI_VARIABLE) or LOCAL_STORE
    if (client := _client(uri)) is None:
        raise ConfigError(f"{run_id}: no MLflow store {uri} here; set {URI_VARIABLE}, or change to its folder")
    from mlflow.exceptions import MlflowException

    try:
        ids = [job.run_id for job in rows(client, run_id) if job.run_id] or [run_id]
        return [run for one in ids if (run := _downloaded(client, uri, one)) is not None]
    except MlflowException as error:
        raise ConfigError(f"{run_id}: {str(error).splitlines()[0]} (MLflow store {uri})") from None


def _downloaded(client: MlflowClient, uri: str, run_id: str) -> Run | None:
    """A run with its artifacts, without the weights; None if it holds no model."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as downloads:
        model, report = (Path(folder) / root for root in _FILES)
        for root, names in _FILES.items():
            Path(folder, root).mkdir()
            there = {Path(artifact.path).name for artifact in client.list_artifacts(run_id, root)}
            for name in there.intersection(names):
                # Where below its destination a download lies depends on the kind of store.
                path = client.download_artifacts(run_id, f"{root}/{name}", downloads)
                shutil.move(path, Path(folder, root, name))
        return read_run(model, report, uri, run_id) if (model / SPEC).is_file() else None
