"""Trainings that a report describes: model folder, tables of the evaluation, and the record in MLflow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hlorank.config import ConfigError, Section, read_section
from hlorank.config.root import ADDRESS
from hlorank.data.collection import SPLITS, Collection
from hlorank.evaluation.graph_report import PER_GRAPH, PREDICTION_COLUMNS, PREDICTIONS, PROPERTIES, PROPERTY_COLUMNS
from hlorank.files import HISTORY, METRICS, RUN, SPEC, DataError, is_of_model, read_json

if TYPE_CHECKING:
    import pandas as pd

TEXT = ("split", "graph", "family", "protocol", "note", "property")
"""Columns that hold no number."""

GRAPHS, FOLD = "data.graphs", "data.local.fold"
"""Settings of a training: the identifier of its raw files in whatever splits, and the fold of them that is valid."""
# Settings that do not change what is trained, and those of repetitions.
_NOT_COMPARED = ("output", "seed", FOLD, "paths.", "pipeline.", "sweep.", "tracking.")
_ROOTS = ("models", "reports")
_COLUMNS = {
    HISTORY: {"member", "epoch", "train_loss", "valid_kendall_tau"},
    PER_GRAPH: {"graph", "split", "protocol", "nodes", "configurations", "distinct", "kendall_tau", "noise_ceiling"},
    PREDICTIONS: set(PREDICTION_COLUMNS),
    PROPERTIES: set(PROPERTY_COLUMNS),
}

Score = Callable[[Path, Collection, Path], object]
"""Function that scores a model folder on its collection, and writes the tables into another folder."""


class _Spec(Section, extra="allow"):
    """The keys of spec.json that a report computes with."""

    steps: int = Field(0, ge=0, lt=2**63)
    features: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Tracked:
    """Record of a training in MLflow: its composed configuration and its metrics, the memory over all members."""

    run_id: str
    settings: Mapping[str, str]
    commit: str | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Run:
    """Training, spec.json and history.csv of its model, and the tables of its evaluation; empty for missing files.

    `place` is the folder or the id of the MLflow run that it was read from; `one_segment` is true if the model was
    trained on segments, and each evaluated graph is one; `unscored` is the reason why there is no evaluation.
    """

    place: str
    collection: Collection
    method: str
    spec: Mapping[str, Any]
    history: pd.DataFrame
    per_graph: pd.DataFrame
    predictions: pd.DataFrame
    properties: pd.DataFrame
    one_segment: bool = False
    tracked: Tracked | None = None
    unscored: str = ""

    @property
    def seed(self) -> str | None:
        """Seed of the training, None if not recorded."""
        return None if self.tracked is None else self.tracked.settings.get("seed")


def compared(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in which two trainings differ that are no repetitions with another seed or fold."""
    return {key: value for key, value in settings.items() if not key.startswith(_NOT_COMPARED)}


def model_and_report_folders(root: Path) -> list[tuple[Path, Path]]:
    """Return the pairs of model folder and report folder at and below a folder; one of each pair may be missing."""
    # Features and segments have a spec.json, too, so that one name is not enough.
    models = (file.parent for name in (HISTORY, RUN) for file in root.rglob(name) if file.with_name(SPEC).is_file())
    reports = (file.parent for file in root.rglob(PER_GRAPH) if file.with_name(METRICS).is_file())
    return sorted({_pair(folder) for folder in (*models, *reports)})


def _pair(folder: Path) -> tuple[Path, Path]:
    """Return models/<rest> and reports/<rest> for either, also if a search is called models; another folder twice."""
    parts = folder.absolute().parts
    collection, _ = _address(folder)
    above = len(parts) if collection is None else len(parts) - len(collection.path.parts) - 1
    roots = [place for place, part in enumerate(parts[:above]) if part in _ROOTS]
    if not roots:
        return folder, folder
    model, report = (Path(*parts[: roots[-1]], root, *parts[roots[-1] + 1 :]) for root in _ROOTS)
    return model, report


def _address(folder: Path) -> tuple[Collection | None, str]:
    """Return collection and method of a folder <collection>/<method>; another folder has no collection."""
    *parts, method = folder.absolute().parts
    addresses = ("/".join(parts[-length:]) for length in (3, 2))
    found = [Collection.parse(address) for address in addresses if ADDRESS.fullmatch(address)]
    return found[0] if found else None, method


def read_run(model: Path, report: Path, tracked: Tracked | None = None, place: str | None = None) -> Run:
    """Read one training from its model folder and the folder of its report, whose files may be missing."""
    own = read_section(_Spec, model / SPEC, "train again, or leave it out") if (model / SPEC).is_file() else None
    spec = {} if own is None else own.model_dump(exclude_unset=True)
    collection, method = _address(folder := model if spec else report)
    if "collection" in spec and "method" in spec:
        collection, method = Collection.parse(str(spec["collection"])), str(spec["method"])
    if collection is None:
        raise DataError("folder", "<collection>/<method>, such as layout/cpu/random/gst", folder.name, file=folder)
    if place is None:
        place = str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)
    facts = read_json(report / METRICS) if (report / METRICS).is_file() else {}
    current = not spec or is_of_model(facts, model)
    return Run(
        place,
        collection,
        method,
        spec,
        history=_table(model / HISTORY),
        per_graph=_table(report / PER_GRAPH, current),
        predictions=_table(report / PREDICTIONS, current),
        properties=_table(report / PROPERTIES, current),
        one_segment=current and "one_segment" in facts,
        tracked=tracked,
        unscored="" if current else f"{report}: of another model",
    )


def scored(run: Run, model: Path, score: Score | None) -> Run:
    """Return a run with the tables of an evaluation, or with the reason why its model cannot be scored."""
    if len(run.per_graph) or score is None:
        return run
    with TemporaryDirectory() as folder:
        try:
            score(model, run.collection, Path(folder))
        except (DataError, ConfigError) as error:
            return replace(run, unscored=str(error))
        return read_run(model, Path(folder), run.tracked, run.place)


def _table(path: Path, wanted: bool = True) -> pd.DataFrame:
    """Read a CSV file of numbers and of the columns `TEXT`, empty without the file."""
    import pandas as pd

    if not (wanted and path.is_file()):
        return pd.DataFrame()
    kinds = defaultdict(lambda: "float64", dict.fromkeys(TEXT, "str"))
    try:
        table = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
    except ValueError as error:
        raise DataError("columns", "a table of numbers", error, file=path) from None
    if missing := _COLUMNS[path.name] - {*table}:
        raise DataError("columns", f"{sorted(_COLUMNS[path.name])} among them", f"no {sorted(missing)}", file=path)
    if others := {*table.get("split", ())} - {*SPLITS}:
        raise DataError("split", f"one of {', '.join(SPLITS)}", sorted(map(str, others)), file=path)
    return table.fillna(dict.fromkeys(TEXT, ""))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, None for missing values."""
    return table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[return-value] # keys are texts
