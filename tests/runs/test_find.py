"""Models by path, by MLflow run, and by registered name."""

import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.files import SHARED_VARIABLE, SPEC, WEIGHTS, DataError, sha256_file
from hlorank.runs.find import model_folder, resolve_alias
from tests.runs.conftest import MakeRun, run_of

NAME = "layout.synthetic.random"


def same(folder: Path, other: Path) -> bool:
    return folder != other and all(sha256_file(folder / name) == sha256_file(other / name) for name in (SPEC, WEIGHTS))


def test_paths_and_runs(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_run()
    run_id = run_of(model)
    assert model_folder(model) == model
    monkeypatch.chdir(model.parent)
    assert model_folder(model.name) == Path(model.name)
    assert (model_folder("layout.cpu") / SPEC).is_file()
    monkeypatch.setenv(SHARED_VARIABLE, str(model.parent))
    assert model_folder(f"$HLORANK_SHARED/{model.name}") == model
    at_exit = list[tuple[Any, ...]]()
    monkeypatch.setattr("atexit.register", lambda *call, **_: at_exit.append(call))
    for reference in (run_id, f"runs:/{run_id}/model"):
        assert same(found := model_folder(reference), model)
    for remove, *arguments in at_exit:
        if remove is shutil.rmtree:
            remove(*arguments)
    assert not found.exists(), "a download is deleted with the process"
    assert hlorank.load(run_id).spec.method == "linear_ranking"


def test_registered_models(make_run: MakeRun) -> None:
    model, client = make_run(), MlflowClient()
    run_id = run_of(model)
    for place in ("package/artifacts/model", "two/one", "two/other"):
        client.log_artifacts(run_id, str(model), place)
    client.create_registered_model(NAME)
    for source in ("package", "two"):
        client.create_model_version(NAME, f"runs:/{run_id}/{source}", run_id=run_id)
    client.set_registered_model_alias(NAME, "champion", "1")
    for reference in (f"models:/{NAME}@champion", f"models:/{NAME}/1"):
        assert same(model_folder(reference), model)
        assert resolve_alias(reference) == f"models:/{NAME}/1"
    for other in (f"models:/{NAME}@other", "models:/unknown@champion", run_id, "some@folder"):
        assert resolve_alias(other) == other
    with pytest.raises(DataError, match="found one, other"):
        model_folder(f"models:/{NAME}/2")


def test_references_without_a_model(make_run: MakeRun, cwd: Path) -> None:
    model = make_run()
    client, empty = MlflowClient(), mlflow.MlflowClient().create_run("0").info.run_id
    client.create_registered_model(NAME)
    references: list[tuple[Any, str]] = [
        (cwd, "found none in it"),
        (model.parent, model.name),
        (model / SPEC, "found a file; give the folder that holds it"),
        ("nowhere", "found no such folder"),
        ("models", "found no such folder"),  # which a clone has once the pipeline has run
        *((name, "expected a run or a registered model") for name in (empty, "0" * 32, f"models:/{NAME}@other")),
        *((name, "expected a run or a registered model") for name in ("models:/unknown/1", "models:/", "runs:/a/b")),
    ]
    for reference, named in references:
        with pytest.raises(DataError) as caught:
            model_folder(reference)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{reference}: model: ")
        assert named in line
