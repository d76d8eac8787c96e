"""Trainings that a report describes: model folder, tables of the evaluation, and MLflow run."""

from __future__ import annotations

import csv
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.errors import PROPERTY_COLUMNS
from hlorank.evaluation.graph_report import PREDICTION_COLUMNS
from hlorank.evaluation.protocol import PER_GRAPH, PREDICTIONS, PROPERTIES
from hlorank.files import HISTORY, METRICS, RUN, SPEC, WEIGHTS, DataError, read_json, recorded_run
from hlorank.runs.store import URI_VARIABLE

# As in hlorank.models.serialization and hlorank.training.mlflow_run, which import torch and pandas.
_FILES = {"model": (SPEC, HISTORY, RUN), "report": (METRICS, PER_GRAPH, PREDICTIONS, PROPERTIES)}
_ROOTS = ("models", "reports")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_TEXT = {"split", "graph", "family", "protocol", "note", "property"}  # columns that hold no number
_COLUMNS = {
    HISTORY: {"member", "epoch", "train_loss", "valid_kendall_tau"},
    PER_GRAPH: {"graph", "split", "protocol", "nodes", "configurations", "distinct", "kendall_tau", "noise_ceiling"},
    PREDICTIONS: set(PREDICTION_COLUMNS),
    PROPERTIES: set(PROPERTY_COLUMNS),
}

Row = dict[str, Any]
Score = Callable[[Path, Collection, Path], object]
"""Function that scores a model folder on its collection, and writes the tables into another folder."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tracked:
    """Record of a training in MLflow.

    Attributes:
        run_id: id of the run.
        settings: the composed configuration, with dotted names.
        commit: git commit, None outside of a repository.
        parameters: number of trained parameters, None if not recorded.
        step_memory_bytes: largest memory of a training step, None if not recorded.
        seconds: seconds of all epochs, validation included; None if not recorded.
        step_seconds: seconds of one step, None if not recorded.
        best_tau: Kendall tau on valid of the epoch whose weights were kept, None if not recorded.
    """

    run_id: str
    settings: Mapping[str, str]
    commit: str | None
    parameters: float | None
    step_memory_bytes: float | None
    seconds: float | None
    step_seconds: float | None
    best_tau: float | None


@dataclass(frozen=True)
class Run:
    """Training and its evaluation; missing files give empty attributes.

    Attributes:
        place: the folder, or the id of the MLflow run, that it was read from.
        collection: collection that the model was trained on.
        method: method of the training.
        spec: spec.json of the model.
        history: rows of history.csv.
        per_graph: rows of per_graph.csv.
        predictions: rows of predictions.csv.
        properties: rows of properties.csv.
        tracked: record in MLflow, None if it is missing or the store is unreachable.
        unscored: reason why the evaluation failed, empty if it was not tried or succeeded.
    """

    place: str
    collection: Collection
    method: str
    spec: Mapping[str, Any]
    history: Sequence[Row]
    per_graph: Sequence[Row]
    predictions: Sequence[Row]
    properties: Sequence[Row]
    tracked: Tracked | None
    unscored: str = ""

    @property
    def seed(self) -> str | None:
        """Seed of the training, None if not recorded."""
        return None if self.tracked is None else self.tracked.settings.get("seed")


def find_runs(names: Sequence[str], score: Score | None = None) -> list[Run]:
    """Find runs by name, each once.

    Args:
        names: model folders, such as models/layout/cpu/random/gst, or report folders, in the same place below reports/;
            folders of several; ids of MLflow runs; ids of sweeps, for their children.
        score: scores the models that were not evaluated; their tables are not kept. None leaves them without.

    Raises:
        ConfigError: a name is neither a folder nor the id of a run, or has no model and no report.
        DataError: a file is damaged.
    """
    runs: dict[str, Run] = {}
    for name in names:
        if (folder := Path(name)).is_dir():
            found = [_scored(read_run(*pair), pair[0], score) for pair in _pairs(folder)]
        elif _RUN_ID.fullmatch(name):
            found = _tracked_runs(name, score)
        else:
            raise ConfigError(f"{name}: expected a folder, or the id of an MLflow run (32 hexadecimal digits)")
        if not found:
            raise ConfigError(f"{name}: no model and no report there; the stages train and evaluate write them")
        runs |= {run.tracked.run_id if run.tracked else run.place: run for run in found}
    return list(runs.values())


def _pairs(root: Path) -> list[tuple[Path, Path]]:
    """Return the pairs of model folder and report folder at and below a folder; one of each pair may be missing."""
    # Features and segments have a spec.json, too, so that one name is not enough.
    models = (file.parent for name in (HISTORY, RUN) for file in root.rglob(name) if file.with_name(SPEC).is_file())
    reports = (file.parent for file in root.rglob(PER_GRAPH) if file.with_name(METRICS).is_file())
    return sorted({_pair(folder) for folder in (*models, *reports)})


def _pair(folder: Path) -> tuple[Path, Path]:
    """Return models/<rest> and reports/<rest> for either; another folder twice, such as that of a job."""
    parts = folder.absolute().parts
    roots = [place for place, part in enumerate(parts) if part in _ROOTS]
    if not roots:
        return folder, folder
    model, report = (Path(*parts[: roots[-1]], root, *parts[roots[-1] + 1 :]) for root in _ROOTS)
    return model, report


def read_run(model: Path, report: Path, uri: str | None = None, place: str | None = None) -> Run:
    """Read one training; its files may be missing.

    Args:
        model: the model folder.
        report: the folder of its report.
        uri: the tracking store; None for MLFLOW_TRACKING_URI, or else the store in the model's run.json.
        place: name of the run; None for the folder.

    Raises:
        DataError: a file is damaged, or neither spec.json nor the folder names the collection.
    """
    from hlorank.runs.find import LOCAL_STORE, tracked

    spec, run = read_json(model / SPEC) if (model / SPEC).is_file() else {}, recorded_run(model)
    folder = model if spec else report
    if place is None:
        place = str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)
    try:
        collection, method = Collection.parse(spec["collection"]), str(spec["method"])
    except KeyError:
        collection, method = _address(folder)
    # Without the mark of redacted credentials: the environment may have others, or none are needed.
    store = uri or os.environ.get(URI_VARIABLE) or run.get("tracking_uri", LOCAL_STORE).replace("***@", "")
    record = tracked(store, run.get("run_id"), spec.get("spec_sha256", ""))
    return Run(place, collection, method, spec, _table(model / HISTORY), *_report_tables(report), record)


def _scored(run: Run, model: Path, score: Score | None) -> Run:
    """Return a run with the tables of an evaluation, or with the reason why its model cannot be scored."""
    if run.per_graph or score is None:
        return run
    with tempfile.TemporaryDirectory() as folder:
        try:
            score(model, run.collection, Path(folder))
        except (DataError, ConfigError) as error:
            return replace(run, unscored=str(error))
        per_graph, predictions, properties = _report_tables(Path(folder))
    return replace(run, per_graph=per_graph, predictions=predictions, properties=properties)


def _report_tables(report: Path) -> tuple[list[Row], list[Row], list[Row]]:
    return _table(report / PER_GRAPH), _table(report / PREDICTIONS), _table(report / PROPERTIES)


def _address(folder: Path) -> tuple[Collection, str]:
    """Return collection and method of a report without a model, from its path."""
    *parts, method = folder.absolute().parts
    for length in (3, 2):
        try:
            return Collection.parse("/".join(parts[-length:])), method
        except ConfigError:
            continue
    raise DataError("folder", "<collection>/<method>, such as layout/cpu/random/gst", folder.name, file=folder)


def _table(path: Path) -> list[Row]:
    """Return the rows of a CSV file, numbers as float and empty cells as None; no rows without the file."""
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


def _tracked_runs(run_id: str, score: Score | None) -> list[Run]:
    """Return the run of an id, or the trainings of a sweep, read from their artifacts.

    Jobs of a sweep that have no model are left out with a warning.

    Raises:
        ConfigError: the store has no such run, or is unreachable.
    """
    from mlflow.exceptions import MlflowException

    from hlorank.runs.find import trainings_of

    uri, trainings = trainings_of(run_id)
    found = []
    try:
        for training in trainings:
            run = _downloaded(uri, training.run_id, score)
            if run is not None:
                found.append(run)
            elif training.job:
                _log.warning("%s: left out, as it has no model: %s", training.job, training.problem)
    except MlflowException as error:
        raise ConfigError(f"{run_id}: {str(error).splitlines()[0]} (MLflow store {uri})") from None
    return found


def _downloaded(uri: str, run_id: str, score: Score | None) -> Run | None:
    """Download a run's artifacts, with the weights if they must be scored; None for a run without a model."""
    from hlorank.runs.find import download_files

    with tempfile.TemporaryDirectory() as folder:
        model, report = (Path(folder) / root for root in _FILES)
        for root, names in _FILES.items():
            Path(folder, root).mkdir()
            download_files(uri, run_id, root, names, Path(folder, root))
        if not (model / SPEC).is_file():
            return None
        if score is not None and not (report / PER_GRAPH).is_file():
            download_files(uri, run_id, "model", [WEIGHTS], model)
        return _scored(read_run(model, report, uri, run_id), model, score)
