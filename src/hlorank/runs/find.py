"""Location of trained models: by path, MLflow run or registered model."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hlorank.files import SPEC, DataError, redact_credentials, resolve_path
from hlorank.runs.store import MODEL, existing_store, experiment_of

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

    Raises:
        DataError: `reference` is not the address of a model; the message has the kind of what was found.
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
    """Return `models:/<name>/<version>` for `models:/<name>@<alias>`; other references, also wrong ones, unchanged.

    Raises:
        DataError: the MLflow store does not exist.
    """
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
    """Return the run of a model in a store: the one that trained it, or else the last one that evaluated it.

    Args:
        client: client of the store.
        run_id: the run that trained the model, None if it is not known.
        digest: digest of the model's specification.

    Returns:
        The id of the run; None if the store has neither of these runs.
    """
    if run_id is not None and experiment_of(client, run_id) is not None:
        return run_id
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.{MODEL} = '{digest}'", max_results=1)
    return str(found[0].info.run_id) if found else None
