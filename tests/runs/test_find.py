"""Models by path, by MLflow run, and by registered name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hlorank
from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import SHARED_VARIABLE, SPEC, WEIGHTS, DataError, read_json, sha256_file, write_json
from hlorank.metrics import BEST_TAU
from hlorank.runs.find import find_runs, model_folder, resolve_alias, tracked
from hlorank.runs.sweeps import _OVERRIDES as OVERRIDES

MakeModel = Callable[..., Path]


@pytest.fixture(scope="module")
def model(linear_model: MakeModel) -> Path:
    return linear_model()


@pytest.fixture
def use(tracking_environment: None) -> Iterator[Callable[[Path], None]]:
    """Function that sets the store; the previous store is restored after the test."""
    import mlflow

    before = mlflow.get_tracking_uri()
    yield lambda path: mlflow.set_tracking_uri(f"sqlite:///{path}")
    mlflow.set_tracking_uri(before)


@pytest.fixture
def store(use: Callable[[Path], None], tracking_database: Path, tmp_path: Path) -> str:
    """Id of a run in an MLflow store that only one test uses."""
    import mlflow

    use(Path(shutil.copy(tracking_database, tmp_path / "mlflow.db")))
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
        (
            tmp_path,
            f"{tmp_path}: model: expected a folder that the stage train wrote, with spec.json, found none in it",
        ),
        (model.parent, f"found one that holds the models .*{model.name}"),
        (model / "spec.json", "model: expected a folder, found a file"),
        ("nowhere", "nowhere: model: expected a model folder, an MLflow run id, .* found no such folder"),
        ("models", "models: model: expected a model folder"),
    ):
        with pytest.raises(DataError, match=message):
            model_folder(reference)


def test_runs(model: Path, store: str) -> None:
    import mlflow

    with mlflow.start_run(run_id=store):
        mlflow.log_artifacts(str(model), "model")
    for reference in (store, f"runs:/{store}/model"):
        found = model_folder(reference)
        assert found != model
        assert same(found, model)
    assert hlorank.load(store).spec.method == "linear_ranking"


def test_registered_models(model: Path, store: str) -> None:
    import mlflow
    from mlflow.tracking import MlflowClient

    with mlflow.start_run(run_id=store):
        mlflow.log_artifacts(str(model), "package/artifacts/model")
        mlflow.log_artifacts(str(model), "two/one")
        mlflow.log_artifacts(str(model), "two/other")
    client = MlflowClient()
    client.create_registered_model("layout.synthetic.random")
    for source in ("package", "two"):
        client.create_model_version("layout.synthetic.random", f"runs:/{store}/{source}", run_id=store)
    client.set_registered_model_alias("layout.synthetic.random", "champion", "1")
    for reference in ("models:/layout.synthetic.random@champion", "models:/layout.synthetic.random/1"):
        assert same(model_folder(reference), model)
        assert resolve_alias(reference) == "models:/layout.synthetic.random/1"
    for other in ("models:/layout.synthetic.random@other", "models:/unknown@champion", store, "some@folder"):
        assert resolve_alias(other) == other
    with pytest.raises(
        DataError, match=r"random/2: model: expected one folder with spec\.json in it, found one, other"
    ):
        model_folder("models:/layout.synthetic.random/2")
    with pytest.raises(
        DataError, match=r"models:/layout\.synthetic\.random@other: model: expected a run or a registered"
    ):
        model_folder("models:/layout.synthetic.random@other")
    for unknown in ("models:/unknown/1", "models:/unknown@champion", "models:/", "runs:/unknown/model", "0" * 32):
        with pytest.raises(DataError, match=f"^{unknown}: model: expected a run or a registered model") as caught:
            model_folder(unknown)
        assert "\n" not in str(caught.value)


def test_a_run_without_a_model(store: str) -> None:
    with pytest.raises(DataError, match=rf"^{store}: model: expected a run or a registered model of the MLflow store"):
        model_folder(store)


def test_a_missing_database_is_not_made(use: Callable[[Path], None], tmp_path: Path) -> None:
    use(tmp_path / "none.db")
    with pytest.raises(DataError, match=r"none\.db: tracking store: "):
        model_folder("models:/some@champion")
    assert not (tmp_path / "none.db").exists()


def test_a_download_is_deleted_with_the_process(model: Path, store: str, tmp_path: Path) -> None:
    import mlflow

    with mlflow.start_run(run_id=store):
        mlflow.log_artifacts(str(model), "model")
    code = "import sys; from hlorank.runs.find import model_folder; print(model_folder(sys.argv[1]))"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri(), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code, store], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(ended.stdout.strip()).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("hlorank-model-*"))


@pytest.fixture
def tracked_model(
    linear_model: MakeModel, tracking_database: Path, tracking_environment: None, tmp_path: Path
) -> Callable[..., Path]:
    """Function that makes a model folder and its run, in the store MLFLOW_TRACKING_URI of the test's folder."""
    import mlflow

    uri = f"sqlite:///{shutil.copy(tracking_database, tmp_path / 'mlflow.db')}"
    os.environ["MLFLOW_TRACKING_URI"] = uri
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("some", artifact_location=(tmp_path / "artifacts").as_uri())

    def make(parent: str | None = None, seed: int = 3) -> Path:
        folder = tmp_path / f"models/layout/synthetic/random/{seed}"
        shutil.copytree(linear_model(), folder)
        (folder / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,0.5,0.25\n")
        tags = {} if parent is None else {"mlflow.parentRunId": parent, OVERRIDES: f'["seed={seed}"]'}
        run_id = client.create_run(experiment, tags=tags).info.run_id
        client.log_param(run_id, "seed", seed)
        client.log_metric(run_id, BEST_TAU, 0.25)
        for size in (7, 5):
            client.log_metric(run_id, "1/train/step_memory_bytes", size)
        write_json(folder / "run.json", {"run_id": run_id, "tracking_uri": uri})
        client.log_artifacts(run_id, str(folder), "model")
        client.set_terminated(run_id)
        return folder

    return make


def test_a_training_is_found_by_its_folder_and_by_its_run(tracked_model: Callable[..., Path]) -> None:
    model = tracked_model()
    run_id = read_json(model / "run.json")["run_id"]
    (of_folder,), (of_store,) = find_runs([str(model)]), find_runs([run_id])
    assert (of_store.place, of_store.method, of_store.spec) == (run_id, "linear_ranking", of_folder.spec)
    assert (of_store.history.equals(of_folder.history), of_store.tracked) == (True, of_folder.tracked)
    assert of_folder.tracked is not None
    assert (of_folder.seed, of_folder.tracked.step_memory_bytes, of_folder.tracked.seconds) == ("3", 7, None)
    assert [run.place for run in find_runs([run_id, str(model)])] == [str(model)], "one run, whatever it is called"


def test_a_sweep_is_replaced_by_its_children(tracked_model: Callable[..., Path]) -> None:
    import mlflow

    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    parent = client.create_run(client.get_experiment_by_name("some").experiment_id).info.run_id
    for seed in (0, 1):
        tracked_model(parent, seed)
    assert sorted(run.seed or "" for run in find_runs([parent])) == ["0", "1"]


def test_models_without_an_evaluation_are_scored_on_demand(tracked_model: Callable[..., Path]) -> None:
    model = tracked_model()

    def score(folder: Path, collection: Collection, output: Path) -> None:
        assert (folder / WEIGHTS).is_file()
        columns = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling"
        (output / "per_graph.csv").write_text(f"{columns}\nvalid,{collection.source},all,1,2,2,0.5,\n")

    for name in (read_json(model / "run.json")["run_id"], str(model)):
        assert find_runs([name])[0].per_graph.empty
        assert find_runs([name], score)[0].per_graph["graph"].tolist() == ["synthetic"]


def test_unknown_names_are_refused(
    tracked_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    other = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"]).create_run("0").info.run_id
    for name, complaint in (
        ("empty", "empty: no model and no report there"),
        ("nowhere", "nowhere: expected a folder, or the id of an MLflow run"),
        (other, f"{other}: no model and no report there"),
        ("e" * 32, rf"{'e' * 32}: .*MLflow store"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            find_runs([name])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
    with pytest.raises(ConfigError, match=r"no MLflow store sqlite:///none.db here; set MLFLOW_TRACKING_URI"):
        find_runs(["f" * 32])
    assert not (tmp_path / "none.db").exists(), "MLflow makes no database"


def test_a_store_that_lost_the_run_is_no_error(
    tracked_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    model, uri = tracked_model(), os.environ["MLFLOW_TRACKING_URI"]
    client, run_id = mlflow.MlflowClient(uri), read_json(model / "run.json")["run_id"]
    client.set_tag(run_id, "model", read_json(model / SPEC)["spec_sha256"])
    write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": "sqlite:///nowhere/mlflow.db"})
    found = tracked(model, uri)
    assert found is not None
    assert found.run_id == run_id, "found by the digest of the model"
    client.delete_run(run_id)
    assert tracked(model, uri) is None
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracked(model) is None
    assert tracked(model, "postgresql+psycopg://me@127.0.0.1:1/mlflow") is None
