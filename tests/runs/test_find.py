"""Models by path, by MLflow run, and by registered name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.files import SHARED_VARIABLE, SPEC, WEIGHTS, DataError, sha256_file
from hlorank.runs.find import model_folder, resolve_alias

MakeModel = Callable[..., Path]
NAME = "layout.synthetic.random"


@pytest.fixture(scope="module")
def model(linear_model: MakeModel) -> Path:
    return linear_model()


@pytest.fixture
def store(tracking_environment: None, tracking_database: Path, tmp_path: Path) -> str:
    """Id of a run in an MLflow store that only one test uses."""
    mlflow.set_tracking_uri(f"sqlite:///{shutil.copy(tracking_database, tmp_path / 'mlflow.db')}")
    experiment = mlflow.create_experiment("some", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        run_id: str = run.info.run_id
    return run_id


def same(folder: Path, other: Path) -> bool:
    return all(sha256_file(folder / name) == sha256_file(other / name) for name in (SPEC, WEIGHTS))


def test_paths(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_folder(model) == model
    monkeypatch.chdir(model.parent)
    assert model_folder(model.name) == Path(model.name)
    monkeypatch.setenv(SHARED_VARIABLE, str(model.parent))
    assert model_folder(f"$HLORANK_SHARED/{model.name}") == model
    for reference, message in (
        (tmp_path, "found none in it"),
        (model.parent, f"found one that holds the models .*{model.name}"),
        (model / "spec.json", "found a file; give the folder that holds it"),
        ("nowhere", "nowhere: model: expected a model folder, an MLflow run id, .* found no such folder"),
        ("models", "models: model: expected a model folder"),
    ):
        with pytest.raises(DataError, match=message):
            model_folder(reference)


def test_runs(model: Path, store: str) -> None:
    with pytest.raises(DataError):
        model_folder(store)
    with mlflow.start_run(run_id=store):
        mlflow.log_artifacts(str(model), "model")
    for reference in (store, f"runs:/{store}/model"):
        found = model_folder(reference)
        assert found != model
        assert same(found, model)
    assert hlorank.load(store).spec.method == "linear_ranking"


def test_registered_models(model: Path, store: str) -> None:
    with mlflow.start_run(run_id=store):
        for place in ("package/artifacts/model", "two/one", "two/other"):
            mlflow.log_artifacts(str(model), place)
    client = MlflowClient()
    client.create_registered_model(NAME)
    for source in ("package", "two"):
        client.create_model_version(NAME, f"runs:/{store}/{source}", run_id=store)
    client.set_registered_model_alias(NAME, "champion", "1")
    for reference in (f"models:/{NAME}@champion", f"models:/{NAME}/1"):
        assert same(model_folder(reference), model)
        assert resolve_alias(reference) == f"models:/{NAME}/1"
    for other in (f"models:/{NAME}@other", "models:/unknown@champion", store, "some@folder"):
        assert resolve_alias(other) == other
    with pytest.raises(DataError, match=r"expected one folder with spec\.json in it, found one, other"):
        model_folder(f"models:/{NAME}/2")
    references = (f"models:/{NAME}@other", "models:/unknown/1", "models:/", "runs:/unknown/model", "0" * 32)
    for unknown in references:
        with pytest.raises(DataError, match=f"^{unknown}: model: expected a run or a registered model") as caught:
            model_folder(unknown)
        assert "\n" not in str(caught.value)


def test_a_missing_database_is_not_made(tracking_environment: None, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(DataError, match=r"none\.db: tracking store: "):
        model_folder("models:/some@champion")
    assert not (tmp_path / "none.db").exists()


def test_a_download_is_deleted_with_the_process(model: Path, store: str, tmp_path: Path) -> None:
    with mlflow.start_run(run_id=store):
        mlflow.log_artifacts(str(model), "model")
    code = "import sys; from hlorank.runs.find import model_folder; print(model_folder(sys.argv[1]))"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri(), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code, store], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(ended.stdout.strip()).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("hlorank-model-*"))
