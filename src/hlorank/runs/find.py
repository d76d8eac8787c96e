"""Queries of the MLflow store: models by path, run or registered name, and the best trainings."""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hlorank.config.root import bundled_ranker
from hlorank.config.train_sections import SWEEP_NAME
from hlorank.data.collection import Collection
from hlorank.files import SPEC, DataError, first_line, redact_credentials, resolve_path, temporary_folder
from hlorank.metrics import BEST_TAU, EXPERIMENT
from hlorank.runs.store import FEATURES, MODEL, NAME, SWEEP, existing_file, existing_store, stored_run

RUN_ID = re.compile(r"[0-9a-f]{32}")
_IS = ("value = ?", "value >= ?")  # a text, and any text, of which none is less than an empty one
_EXPECTED = "a model folder, layout.cpu, an MLflow run id, runs:/<run id>/model or models:/<name>@<alias or /version>"


def model_folder(reference: str | Path) -> Path:
    """Return the folder of a trained model, with spec.json and weights.safetensors.

    `reference` is a path, which may begin with `~` or `$HLORANK_SHARED`; a ranker of the package, such as layout.cpu; a
    run id; `runs:/<run id>/<artifact>`; or `models:/<name>@<alias>` and `models:/<name>/<version>`, in the store of
    MLFLOW_TRACKING_URI, the registry of MLFLOW_REGISTRY_URI, else mlflow.db in the current folder. Downloads are
    deleted when the process ends.
    """
    text = str(reference)
    folder = bundled_ranker(text) or resolve_path(text)
    if (folder / SPEC).is_file():
        return folder
    if folder.is_dir():
        below = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{SPEC}")))
        found = f"one that holds the models {below}" if below else "none in it"
        raise DataError("model", f"a folder that the stage train wrote, with {SPEC}", found, file=folder)
    if text.startswith(("runs:/", "models:/")) or RUN_ID.fullmatch(text):
        return _download(text)
    found = "a file; give the folder that holds it" if folder.exists() else "no such folder"
    raise DataError("model", _EXPECTED, found, file=text)


def resolve_alias(reference: str) -> str:
    """Return `models:/<name>/<version>` for `models:/<name>@<alias>`; other references, also wrong ones, unchanged."""
    name, _, alias = reference.removeprefix("models:/").partition("@")
    if not reference.startswith("models:/") or not alias:
        return reference
    import mlflow

    existing_store()
    try:
        return f"models:/{name}/{mlflow.MlflowClient().get_model_version_by_alias(name, alias).version}"
    except mlflow.MlflowException:
        return reference


def _download(reference: str) -> Path:
    """Download the model of a run, or a model by its MLflow address, and return its folder."""
    import mlflow

    store = existing_store()
    uri = f"runs:/{reference}/model" if RUN_ID.fullmatch(reference) else reference
    try:
        downloaded = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(temporary_folder())))
    except (mlflow.MlflowException, OSError) as error:
        found = redact_credentials(f"{first_line(error)} (tracking store {store})")
        raise DataError("model", "a run or a registered model of the MLflow store", found, file=reference) from None
    found_specs = (path.relative_to(downloaded) for path in sorted(downloaded.rglob(SPEC)))
    # The code of a registered version has the rankers of the package.
    folders = [downloaded / path.parent for path in found_specs if path.parts[0] != "code"]
    if len(folders) != 1:
        found = ", ".join(str(folder.relative_to(downloaded)) for folder in folders) or "none"
        raise DataError("model", f"one folder with {SPEC} in it", found, file=reference)
    return folders[0]


def _search(
    tags: Mapping[str, str | None], *, trained: bool = False, most: int = 50_000, file: Path | None = None
) -> list[Any]:
    """Return runs of all experiments with these tags, None for any value, the latest first, in a file if it is given.

    `trained` ones have a validation Kendall tau. A number beyond 1 is none: a store writes infinity as the largest
    number that it has room for.
    """
    if file is not None:
        with suppress(sqlite3.Error):  # tables of another version of MLflow
            return _read(file, tags, trained, most)
        existing_store()
    import mlflow

    conditions = [f"metrics.`{BEST_TAU}` > -2", f"metrics.`{BEST_TAU}` <= 1"] if trained else []
    conditions += [f"tags.`{key}` " + ("LIKE '%'" if value is None else f"= '{value}'") for key, value in tags.items()]
    options: dict[str, Any] = {"search_all_experiments": True, "output_format": "list", "max_results": most}
    return [*mlflow.search_runs(None, " and ".join(conditions), order_by=["attributes.start_time DESC"], **options)]


def _read(file: Path, tags: Mapping[str, str | None], trained: bool, most: int) -> list[Any]:
    """Search a database file without MLflow, whose import takes several times as long as all of `hlorank best`."""
    metric = f"latest_metrics WHERE key = '{BEST_TAU}' AND value > -2 AND value <= 1 AND NOT is_nan"
    within = [metric] * trained + [f"tags WHERE key = ? AND {_IS[value is None]}" for value in tags.values()]
    within = [f"run_uuid IN (SELECT run_uuid FROM {table})" for table in within]  # noqa: S608 - own texts
    active = ["runs.lifecycle_stage = 'active'", "experiments.lifecycle_stage = 'active'"]
    chosen = f"FROM runs JOIN experiments USING (experiment_id) WHERE {' AND '.join([*active, *within])}"
    given = [part or "" for pair in tags.items() for part in pair]
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
        query = f"SELECT run_uuid, runs.name, artifact_uri {chosen} ORDER BY start_time DESC, run_uuid LIMIT {most}"
        runs = [
            SimpleNamespace(run_id=run_id, run_name=name, artifact_uri=uri)
            for run_id, name, uri in database.execute(query, given)
        ]
        data = {run.run_id: SimpleNamespace(tags={}, params={}, latest_metrics={}) for run in runs}
        for table in ("tags", "params", "latest_metrics"):
            query = f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN (SELECT run_uuid {chosen})"  # noqa: S608 - as above
            for run_id, key, value in database.execute(query, given):
                if run_id in data:
                    vars(data[run_id])[table][key] = value
    for values in data.values():
        values.metrics = values.latest_metrics
    return [SimpleNamespace(info=run, data=data[run.run_id]) for run in runs]


def tagged_runs(client: Any, parent: str) -> list[Any]:
    """Return the runs in the table of a sweep, the latest last."""
    query = f"tags.`{SWEEP}.{parent}` LIKE '%'"
    experiment = client.get_run(parent).info.experiment_id
    return list(client.search_runs([experiment], query, max_results=50_000, order_by=["attributes.start_time"]))


def run_of_model(recorded: Mapping[str, Any], digest: str) -> Any:
    """Return the run that a model folder has recorded, or else the last run that evaluated the model of this digest."""
    if "run_id" in recorded and (run := stored_run(recorded["run_id"])) is not None:
        return run
    return next(iter(_search({MODEL: digest}, most=1)), None)


def best_runs(collection: str | None = None, sweep: str | None = None) -> list[dict[str, Any]]:
    """Return the settings with the best mean Kendall tau on valid, over seeds and folds, by collection and features."""
    from hlorank.evaluation.report.trainings import GRAPHS, compared

    file = existing_file()
    store = existing_store() if file is None else f"sqlite:///{file}"
    place, tags = "", dict[str, str | None](method=None)
    if collection is not None:
        tags["collection"] = collection = str(Collection.parse(collection))
        place = f" of {collection}"
    if sweep is not None:
        latest = _search({NAME: sweep}, most=1, file=file) if SWEEP_NAME.fullmatch(sweep) else ()
        if not latest:
            raise DataError("sweep", f"a sweep named {sweep!r}", "none", file=store)
        tags[f"{SWEEP}.{latest[0].info.run_id}"] = None
        place += f" in the sweep {sweep!r}"
    groups: dict[tuple[Any, ...], dict[str, dict[str | None, Any]]] = {}
    for run in _search(tags, trained=True, file=file):
        own, settings = run.data.tags, run.data.params
        features = own.get(FEATURES, own.get("data", ""))
        key = (own["collection"], own["method"], settings.get(GRAPHS, features), *sorted(compared(settings).items()))
        groups.setdefault(key, {}).setdefault(features, {}).setdefault(settings.get("seed"), run)
    best = []
    for address, folds in {(key[0], frozenset(runs)) for key, runs in groups.items()}:
        rivals = [[*runs.items()] for key, runs in groups.items() if key[0] == address and folds <= runs.keys()]
        rows = [_row([[*seeds.values()] for fold, seeds in runs if fold in folds]) for runs in rivals]
        best.append({**max(rows, key=lambda row: row["valid_kendall_tau"]), "features": ", ".join(sorted(folds))})
    if not best:
        raise DataError("runs", f"a finished training{place}, validated", "none; make repro trains", file=store)
    return sorted(best, key=lambda row: (row["collection"], -row["valid_kendall_tau"], row["features"]))


def _row(folds: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the row of trainings of equal settings: of each fold those of its seeds."""
    runs = [run for seeds in folds for run in seeds]
    taus = [run.data.metrics[BEST_TAU] for run in runs]
    run = runs[taus.index(max(taus))]
    address = str(run.info.artifact_uri)
    model = Path(url2pathname(urlsplit(address).path) if address.startswith("file:") else address, "model")
    return {
        "collection": run.data.tags["collection"],
        "method": run.data.tags["method"],
        "experiment": run.data.tags.get(EXPERIMENT),
        "valid_kendall_tau": fmean(fmean(seed.data.metrics[BEST_TAU] for seed in seeds) for seeds in folds),
        "standard_deviation": stdev(taus) if len(taus) > 1 else None,
        "seeds": len({seed.data.params.get("seed") for seed in runs}),
        "folds": len(folds),
        "seed": int(seed) if (seed := run.data.params.get("seed", "")).isdecimal() else None,
        "name": run.info.run_name,
        "run_id": run.info.run_id,
        "model": str(model) if (model / SPEC).is_file() else f"runs:/{run.info.run_id}/model",
    }
