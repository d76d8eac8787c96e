from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate_model import evaluate, score_model
from hlorank.evaluation.report.runs import find_runs, read_run
from hlorank.files import DataError, read_json, write_json
from hlorank.runs.sweeps import _record_failure
from hlorank.training.baselines.train_baseline import train_baseline

Settings = Callable[..., Config]
RANDOM = Collection.parse("layout:cpu:random")


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a minimal model folder and its report, without an MLflow run."""
    root = tmp_path_factory.mktemp("written")
    model, report = (root / kind / "layout/cpu/random/gst" for kind in ("models", "reports"))
    write_json(model / "spec.json", {"collection": "layout:cpu:random", "method": "gst", "data": "d" * 16})
    write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": f"sqlite:///{root}/mlflow.db"})
    (model / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,,0.5\n")
    write_json(report / "metrics.json", {})
    columns = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling,note"
    (report / "per_graph.csv").write_text(f"{columns}\nvalid,007,all,27,64,60,0.25,,a note\n")
    (report / "predictions.csv").write_text(
        "split,graph,configuration,predicted_rank,measured_rank\nvalid,007,3,0.5,0.0\n"
    )
    return root


@pytest.fixture
def written(_written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(_written, tmp_path, dirs_exist_ok=True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["models/layout/cpu/random/gst", "reports/layout/cpu/random/gst", "models", "reports", "."]
)
def test_a_model_and_its_report_are_found_from_either(written: Path, name: str) -> None:
    (run,) = find_runs([name, name])
    assert (run.place, run.collection, run.method) == ("models/layout/cpu/random/gst", RANDOM, "gst")
    assert run.history == [{"member": 0.0, "epoch": 1.0, "train_loss": None, "valid_kendall_tau": 0.5}]
    (row,) = run.per_graph
    assert (row["graph"], row["kendall_tau"], row["noise_ceiling"], row["note"]) == ("007", 0.25, None, "a note")
    assert run.predictions[0]["configuration"] == 3.0
    assert (run.tracked, run.seed) == (None, None)
    assert not (written / "mlflow.db").exists(), "MLflow makes no database"


def test_a_report_alone_is_named_by_its_folder(written: Path) -> None:
    shutil.rmtree(written / "models")
    (run,) = find_runs(["reports"])
    assert (run.collection, run.method, dict(run.spec), run.history) == (RANDOM, "gst", {}, [])
    shutil.copytree(written / "reports/layout/cpu/random/gst", written / "elsewhere")
    with pytest.raises(DataError, match="elsewhere: folder: expected <collection>/<method>"):
        find_runs(["elsewhere"])


def test_a_job_of_a_sweep_keeps_its_model_in_a_folder_of_its_own(written: Path) -> None:
    shutil.move(written / "models/layout/cpu/random/gst", written / "multirun/0")
    (run,) = find_runs(["multirun"])
    assert (run.place, run.collection, len(run.history), run.per_graph) == ("multirun/0", RANDOM, 1, [])


def test_unknown_names_are_refused(written: Path) -> None:
    (written / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty: no model and no report there"):
        find_runs(["empty"])
    with pytest.raises(ConfigError, match="nowhere: expected a folder, or the id of an MLflow run"):
        find_runs(["nowhere"])
    with pytest.raises(ConfigError, match=r"f{32}: no MLflow store sqlite:///mlflow.db here; set MLFLOW_TRACKING_URI"):
        find_runs(["f" * 32])


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("split,graph\n", r"per_graph.csv: columns: expected .*, found no \['configurations'"),
        ("", "per_graph.csv: columns"),
        (None, "per_graph.csv: rows: expected a table of numbers, found could not convert string to float: 'many'"),
    ],
)
def test_a_damaged_table_is_named(written: Path, table: str | None, complaint: str) -> None:
    path = written / "reports/layout/cpu/random/gst/per_graph.csv"
    path.write_text(path.read_text().replace("64", "many") if table is None else table)
    with pytest.raises(DataError, match=complaint):
        find_runs(["models"])


def tiny(settings: Settings, folder: Path, **values: Any) -> tuple[Config, Path]:
    """Train and evaluate a baseline that takes no time."""
    config = settings(method="random", **values)
    model = folder / "models/layout/synthetic/random/random"
    train_baseline(config, model)
    evaluate(config, model, folder / "reports/layout/synthetic/random/random")
    return config, model


def test_a_run_is_read_from_its_folder_and_from_mlflow(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = tiny(settings, tmp_path, seed=3)
    (of_folder,) = find_runs([str(model)])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", config.tracking.uri)
    run_id = read_json(model / "run.json")["run_id"]
    (of_store,) = find_runs([run_id])
    assert of_store.place == run_id
    for name in ("collection", "method", "spec", "history", "per_graph", "predictions", "tracked"):
        assert getattr(of_store, name) == getattr(of_folder, name), name
    assert of_folder.tracked is not None
    assert (of_folder.seed, of_folder.tracked.settings["method"]) == ("3", "random")
    assert of_folder.tracked.step_memory_bytes is None  # a baseline has no steps
    assert of_folder.tracked.seconds is not None
    with (tmp_path / "reports/layout/synthetic/random/random/per_graph.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(of_folder.per_graph)
    assert find_runs([run_id, str(model)]) == [of_folder], "one run, whatever it is called"
    with pytest.raises(ConfigError, match=rf"{'e' * 32}: .*MLflow store {config.tracking.uri}"):
        find_runs(["e" * 32])


def test_a_sweep_is_replaced_by_its_children(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    config = settings()
    client = MlflowClient(config.tracking.uri)
    experiment = client.create_experiment(config.tracking.experiment, str(tmp_path / "artifacts"))
    parent = client.create_run(experiment).info.run_id
    monkeypatch.setenv("HLORANK_PARENT_RUN", parent)
    tiny(settings, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", config.tracking.uri)
    (run,) = find_runs([parent])
    assert run.method == "random"
    other = client.create_run(experiment).info.run_id
    with pytest.raises(ConfigError, match=f"{other}: no model and no report there"):
        find_runs([other])


def test_models_without_an_evaluation_are_scored_on_demand(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(method="random")
    model = tmp_path / "models/layout/synthetic/random/random"
    train_baseline(config, model)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", config.tracking.uri)
    run_id = read_json(model / "run.json")["run_id"]
    assert find_runs([run_id])[0].per_graph == []
    features, segments = Path(config.paths.features), Path(config.paths.segments)
    valid = config.evaluate.model_copy(update={"splits": ["valid"]})

    def score(folder: Path, collection: Collection, output: Path) -> None:
        score_model(folder, collection, features, segments, valid, output)

    of_store, of_folder = (find_runs([name], score)[0] for name in (run_id, str(model)))
    assert {row["split"] for row in of_store.per_graph} == {"valid"}
    assert of_store.per_graph == of_folder.per_graph
    assert of_store.predictions
    assert find_runs([run_id])[0].per_graph == [], "the scores are not kept"
    features = tmp_path / "nowhere"
    (failed,) = find_runs([run_id], score)
    assert (failed.per_graph, "nowhere" in failed.unscored) == ([], True)


def test_jobs_of_a_sweep_without_a_model_are_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.tracking import MlflowClient

    config = settings()
    client = MlflowClient(config.tracking.uri)
    experiment = client.create_experiment(config.tracking.experiment, str(tmp_path / "artifacts"))
    parent = client.create_run(experiment).info.run_id
    _record_failure(client, parent, ["method=gst", "model.width=7"], ValueError("model.width=7: not even"))
    monkeypatch.setenv("HLORANK_PARENT_RUN", parent)
    tiny(settings, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", config.tracking.uri)
    (run,) = find_runs([parent])
    assert run.method == "random"
    (warning,) = caplog.messages
    assert "method=gst model.width=7" in warning
    assert "not even" in warning


def test_a_store_that_lost_the_run_is_no_error(settings: Settings, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    config, model = tiny(settings, tmp_path)
    run_id = read_json(model / "run.json")["run_id"]
    write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": "sqlite:///nowhere/mlflow.db"})
    tracked = read_run(model, model, config.tracking.uri).tracked
    assert tracked is not None
    assert tracked.run_id == run_id, "found by the digest of the model that it evaluated"
    MlflowClient(config.tracking.uri).delete_run(run_id)
    assert read_run(model, model, config.tracking.uri).tracked is None
    assert read_run(model, model).tracked is None
    assert read_run(model, model, "postgresql+psycopg://me@127.0.0.1:1/mlflow").tracked is None
