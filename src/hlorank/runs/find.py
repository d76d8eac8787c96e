"""Queries of the MLflow store: models by path, run or registered name, the best trainings, and records for reports."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlparse

from hlorank.config import ConfigError
from hlorank.config.train_sections import SWEEP_NAME
from hlorank.data.collection import Collection
from hlorank.files import SPEC, DataError, read_json, recorded_run, redact_credentials, resolve_path
from hlorank.metrics import BEST_TAU, EXPERIMENT, TRAIN_SECONDS
from hlorank.runs.store import (
    FEATURES,
    MANY,
    MODEL,
    NAME,
    SWEEP,
    URI_VARIABLE,
    check_server,
    database_file,
    existing_store,
    stored_run,
)

if TYPE_CHECKING:
    from hlorank.evaluation.report.trainings import Tracked

_LOCAL_STORE = "sqlite:///mlflow.db"
_STEP_MEMORY = "train/step_memory_bytes"  # with a prefix for each member of an ensemble

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_EXPECTED = "a model folder, an MLflow run id, runs:/<run id>/model or models:/<name>@<alias or /version>"


def model_folder(reference: str | Path) -> Path:
    """Return the folder of a trained model, with spec.json and weights.safetensors.

    The MLflow store is that of MLFLOW_TRACKING_URI and MLFLOW_REGISTRY_URI, else mlflow.db in the current folder. The
    model of a run is its artifact `model`; that of a registered model is the only folder in it that contains a model.
    Downloads are kept in a temporary folder, which is deleted when the process ends.

    Args:
        reference: a path, which may begin with `~` or `$HLORANK_SHARED`; a run id; `runs:/<run id>/<artifact>`; or
            `models:/<name>@<alias>` and `models:/<name>/<version>`.
    """
    text = str(reference)
    folder = resolve_path(text)
    if folder.is_dir():
        if not (folder / SPEC).is_file():
            below = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{SPEC}")))
            found = f"one that holds the models {below}" if below else "none in it"
            raise DataError("model", f"a folder that the stage train wrote, with {SPEC}", found, file=folder)
        return folder
    if folder.exists():
        raise DataError("model", "a folder", "a file; give the folder that holds it", file=folder)
    if _RUN_ID.fullmatch(text):
        return _download(f"runs:/{text}/model", text)
    if text.startswith(("runs:/", "models:/")):
        return _download(text, text)
    raise DataError("model", _EXPECTED, "no such folder", file=text)


def resolve_alias(reference: str) -> str:
    """Return `models:/<name>/<version>` for `models:/<name>@<alias>`; other references, also wrong ones, unchanged."""
    name, _, alias = reference.removeprefix("models:/").partition("@")
    if not reference.startswith("models:/") or not alias:
        return reference
    import mlflow
    from mlflow.exceptions import MlflowException

    existing_store()
    try:
        return f"models:/{name}/{mlflow.MlflowClient().get_model_version_by_alias(name, alias).version}"
    except MlflowException:
        return reference


def _download(uri: str, reference: str) -> Path:
    """Download a model from MLflow and return its folder; errors name `reference`."""
    import mlflow
    from mlflow.exceptions import MlflowException

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    store = existing_store()
    target = tempfile.mkdtemp(prefix="hlorank-model-")
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    try:
        downloaded = Path(mlflow.artifacts.download_artifacts(uri, dst_path=target))
    except (MlflowException, OSError) as error:
        found = redact_credentials(f"{str(error).strip().splitlines()[0]} (tracking store {store})")
        raise DataError("model", "a run or a registered model of the MLflow store", found, file=reference) from None
    if (downloaded / SPEC).is_file():
        return downloaded
    folders = [path.parent for path in sorted(downloaded.rglob(SPEC))]
    if len(folders) != 1:
        found = ", ".join(str(folder.relative_to(downloaded)) for folder in folders) or "none"
        raise DataError("model", f"one folder with {SPEC} in it", found, file=reference)
    return folders[0]


def run_of_model(client: Any, run_id: str | None, digest: str) -> str | None:
    """Return the run that trained a model, if known, or else the last run that evaluated the model with this digest."""
    if run_id is not None and stored_run(client, run_id) is not None:
        return run_id
    found = client.search_runs(_experiments(client), f"tags.{MODEL} = '{digest}'", max_results=1)
    return str(found[0].info.run_id) if found else None


def _experiments(client: Any) -> list[str]:
    return [experiment.experiment_id for experiment in client.search_experiments()]


def best_runs(collection: str | None = None, sweep: str | None = None) -> list[dict[str, Any]]:
    """Return the finished training with the best validation Kendall tau of each collection and features.

    The objects are in the order of the collections' names, the best first. Only trainings of a collection, or in the
    table of the sweep with a name, are returned where these are given.
    """
    import mlflow

    conditions = [f"metrics.`{BEST_TAU}` > -2"]
    if collection is not None:
        collection = str(Collection.parse(collection))
        conditions.append(f"tags.collection = '{collection}'")
    client = mlflow.MlflowClient(existing_store())
    if sweep is not None:
        conditions.append(f"tags.`{SWEEP}.{_sweep_of(client, sweep)}` LIKE '%'")
    order = [f"metrics.`{BEST_TAU}` DESC"]
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for run in client.search_runs(_experiments(client), " and ".join(conditions), max_results=MANY, order_by=order):
        tags = run.data.tags
        features = tags.get(FEATURES, tags["data"])
        found = {
            "collection": tags["collection"],
            "method": tags["method"],
            "experiment": tags.get(EXPERIMENT),
            "seed": int(run.data.params["seed"]),
            "name": run.info.run_name,
            "valid_kendall_tau": run.data.metrics[BEST_TAU],
            "features": features,
            "run_id": run.info.run_id,
            "model": _model_of(run),
        }
        best.setdefault((tags["collection"], features), found)
    if not best:
        of = "".join([f" of {collection}" if collection else "", f" in the sweep {sweep!r}" if sweep else ""])
        expected = f"a finished training{of}, validated"
        raise DataError("runs", expected, "none; make repro trains", file=client.tracking_uri)
    return sorted(best.values(), key=lambda found: str(found["collection"]))  # stable: keeps the best first


def _sweep_of(client: Any, name: str) -> str:
    """Return the id of the latest run of the sweep of a name."""
    latest: Sequence[Any] = ()
    if SWEEP_NAME.fullmatch(name):
        order = ["attributes.start_time DESC"]
        latest = client.search_runs(_experiments(client), f"tags.`{NAME}` = '{name}'", max_results=1, order_by=order)
    if not latest:
        raise DataError("sweep", f"a sweep named {name!r}", "none", file=client.tracking_uri)
    return str(latest[0].info.run_id)


def _model_of(run: Any) -> str:
    """Return the folder of the model of a run if it is on this machine, else its MLflow address."""
    uri = urlparse(run.info.artifact_uri)
    folder = Path(unquote(uri.path), "model")
    here = uri.scheme in {"", "file"} and (folder / SPEC).is_file()
    return str(folder) if here else f"runs:/{run.info.run_id}/model"


def _client(uri: str) -> Any:
    """Return a client of a store; None for a local store that does not exist, which MLflow would create."""
    if (path := database_file(uri)) is not None and not path.is_file():
        return None
    from mlflow.tracking import MlflowClient

    check_server(uri)
    return MlflowClient(uri)


def tracked(model: Path, uri: str | None = None) -> Tracked | None:
    """Return a store's record of the run of a model folder, None if the store has none or is unreachable.

    The store is `uri`, or else that of MLFLOW_TRACKING_URI, or else that of the model's run.json.
    """
    from mlflow.exceptions import MlflowException

    from hlorank.evaluation.report.trainings import Tracked

    spec, recorded = read_json(model / SPEC) if (model / SPEC).is_file() else {}, recorded_run(model)
    # Without the mark of redacted credentials: the environment may have others, or none are needed.
    uri = uri or os.environ.get(URI_VARIABLE) or recorded.get("tracking_uri", _LOCAL_STORE).replace("***@", "")
    digest = spec.get("spec_sha256", "")
    try:
        if (client := _client(uri)) is None:
            return None
        if (run_id := run_of_model(client, recorded.get("run_id"), digest)) is None:
            return None
        run = client.get_run(run_id)
        memories = [key for key in run.data.metrics if key.endswith(_STEP_MEMORY)]
        sizes = [entry.value for key in memories for entry in client.get_metric_history(run_id, key)]
    except (MlflowException, ConnectionError):
        return None
    metrics = run.data.metrics
    return Tracked(
        run_id=run_id,
        settings=run.data.params,
        commit=run.data.tags.get("mlflow.source.git.commit"),
        parameters=metrics.get("train/parameters"),
        step_memory_bytes=max(sizes, default=None),
        seconds=metrics.get(TRAIN_SECONDS),
        step_seconds=metrics.get("train/step_seconds"),
        best_tau=metrics.get(BEST_TAU),
    )


class Training(NamedTuple):
    """Run of a training, and why it has no model if that is known: the overrides of its job, and what happened."""

    run_id: str
    job: str = ""
    problem: str = ""


def trainings_of(run_id: str) -> tuple[str, list[Training]]:
    """Return the store, and the run of an id or, for the id of a sweep, the runs in its table."""
    from hlorank.runs.sweeps import job_names, job_table

    uri = os.environ.get(URI_VARIABLE) or _LOCAL_STORE
    if (client := _client(uri)) is None:
        raise ConfigError(f"{run_id}: no MLflow store {uri} here; set {URI_VARIABLE}, or change to its folder")
    from mlflow.exceptions import MlflowException

    try:
        table = job_table(client, run_id)
    except MlflowException as error:
        raise ConfigError(f"{run_id}: {str(error).splitlines()[0]} (MLflow store {uri})") from None
    problems = table["reason"].where(table["reason"] != "", table["state"])
    jobs = zip(table["run_id"], job_names(table), problems, strict=True)
    return uri, [Training(*job) for job in jobs] or [Training(run_id)]


def download_files(uri: str, run_id: str, root: str, names: Sequence[str], folder: Path) -> None:
    """Download the named files that a run has in the folder `root` of its artifacts into a folder."""
    client = _client(uri)
    artifacts = {Path(artifact.path).name for artifact in client.list_artifacts(run_id, root)}
    with tempfile.TemporaryDirectory() as downloads:
        for name in artifacts.intersection(names):
            # The path below the destination depends on the kind of store.
            shutil.move(client.download_artifacts(run_id, f"{root}/{name}", downloads), folder / name)
