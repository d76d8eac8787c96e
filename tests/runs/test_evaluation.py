"""Evaluations in the runs of their trainings."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.evaluation.graph_report import PER_GRAPH
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, write_json
from hlorank.metrics import BEST_TAU
from hlorank.models.graph_inputs import GraphLoader
from hlorank.runs.evaluation import LOGGED, TABLE, find_runs, log_evaluation, tracked
from hlorank.runs.store import FINGERPRINT, MODEL, SWEEP, finished_training
from tests.runs.conftest import MakeRun, run_of

Runs = Callable[[Config], list[Run]]


def test_metrics_join_the_run_of_the_training(
    config: Config, make_run: MakeRun, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without its run gets one."""
    features = Path(config.paths.features) / Collection.parse(config.collection).path
    model = make_run({BEST_TAU: 0.5}, {FINGERPRINT: "key"}, data=GraphLoader(features, None).fingerprint)
    metrics = evaluate(config, model, tmp_path / "report")
    per_graph = tmp_path / "report" / PER_GRAPH  # names can be numbers
    per_graph.write_text(re.sub("synthetic_(valid|test)_", "", per_graph.read_text()))
    for _ in range(2):
        log_evaluation(config, model, metrics, tmp_path / "report")
    (run,) = runs(config)
    logged = {f"evaluate/{name}": value for name, value in metrics.items() if name.rpartition("/")[2] in LOGGED}
    assert {"evaluate/valid/kendall_tau", "evaluate/test/slowdown_5"} <= logged.keys()
    assert run.data.metrics == {BEST_TAU: 0.5, **logged}
    assert run.data.tags["features"] == FeatureStore(features).fingerprint
    assert run.data.tags["model"] == read_json(model / SPEC)["spec_sha256"]
    (report,) = (tmp_path / "artifacts").rglob("report")
    assert {path.name for path in report.iterdir()} == {path.name for path in (tmp_path / "report").iterdir()}
    (path,) = (tmp_path / "artifacts").rglob(TABLE)
    table = read_json(path)
    assert table["columns"][:2] == ["graph", "kendall_tau"], "what MLflow groups by and shows"
    assert [row[0] for row in table["data"]] == ["valid/000", "valid/001", "test/000"], "once, after two evaluations"
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": TABLE, "type": "table"}]
    full = Mock(side_effect=OSError(28, "No space left on device"))
    for method in ("log_artifacts", "log_batch"):
        with monkeypatch.context() as patched:
            patched.setattr(MlflowClient, method, full)
            with pytest.raises(OSError, match="No space left"):
                log_evaluation(config, model, metrics, tmp_path / "report")
        assert [found.info.status for found in runs(config)] == ["FINISHED"], "the training is finished"
        assert finished_training(config.tracking, "key") == (run_of(model), 0.5)

    MlflowClient().delete_run(run.info.run_id)
    files = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    for _ in range(2):
        log_evaluation(config, model, metrics, tmp_path / "report")
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == files
    (own,) = runs(config)
    assert (own.data.tags["run"], own.info.status) == ("evaluated elsewhere", "FINISHED")
    assert own.data.metrics == logged


def test_a_training_is_found_by_its_folder_and_by_its_run(make_run: MakeRun) -> None:
    model = make_run({BEST_TAU: 0.25})
    run_id = run_of(model)
    for size in (7, 5):
        mlflow.MlflowClient().log_metric(run_id, "1/train/step_memory_bytes", size)
    (of_folder,), (of_store,) = find_runs([str(model)]), find_runs([run_id])
    assert (of_store.place, of_store.method, of_store.spec) == (run_id, "linear_ranking", of_folder.spec)
    assert (of_store.history.equals(of_folder.history), of_store.tracked) == (True, of_folder.tracked)
    assert of_folder.tracked is not None
    assert (of_folder.seed, of_folder.tracked.metrics["train/step_memory_bytes"]) == ("7", 7)
    assert [run.place for run in find_runs([run_id, str(model)])] == [str(model)], "one run, whatever it is called"

    def score(folder: Path, collection: Collection, output: Path) -> None:
        assert (folder / WEIGHTS).is_file()
        columns = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling"
        (output / "per_graph.csv").write_text(f"{columns}\nvalid,{collection.source},all,1,2,2,0.5,\n")

    for name in (run_id, str(model)):
        assert find_runs([name])[0].per_graph.empty
        assert find_runs([name], score)[0].per_graph["graph"].tolist() == ["synthetic"], "scored on demand"


def test_a_sweep_is_replaced_by_its_trainings(make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("hlorank").experiment_id
    parent = client.create_run(experiment).info.run_id
    for seed in (0, 1):
        make_run({BEST_TAU: 0.25}, {f"{SWEEP}.{parent}": json.dumps({"seed": seed})}, {"seed": seed})
    values = json.dumps({"method": "gst", "model.width": "7"})
    client.create_run(experiment, tags={f"{SWEEP}.{parent}": values, "hlorank.reason": "ValueError: not even"})
    assert sorted(run.seed or "" for run in find_runs([parent])) == ["0", "1"]
    (warning,) = caplog.messages
    assert "method=gst" in warning
    assert "not even" in warning


def test_unknown_names_are_refused(make_run: MakeRun, cwd: Path) -> None:
    (cwd / "empty").mkdir()
    for name in ("empty", "nowhere", mlflow.MlflowClient().create_run("0").info.run_id, "e" * 32):
        with pytest.raises(ConfigError, match=name):
            find_runs([name])
    mlflow.set_tracking_uri("sqlite:///none.db")
    with pytest.raises(DataError, match=r"none\.db: tracking store"):
        find_runs(["f" * 32])
    assert not (cwd / "none.db").exists(), "MLflow makes no database"


def test_a_folder_does_not_choose_the_store(make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    """It might be somebody else's, and would get the user's credentials."""
    model, client = make_run(), mlflow.MlflowClient()
    run_id = run_of(model)
    client.set_tag(run_id, MODEL, read_json(model / SPEC)["spec_sha256"])
    write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": "http://127.0.0.1:1"})
    found = tracked(model)
    assert found is not None
    assert found.run_id == run_id, "found by the digest of the model"
    client.delete_run(run_id)
    for address in ("http://me:secret@127.0.0.1:1", f"sqlite:///{model}/others.db", 7):
        write_json(model / "run.json", {"run_id": "0" * 32, "tracking_uri": address})
        assert tracked(model) is None
    for warning, shown in zip(caplog.messages, ("http://***@127.0.0.1:1", "others.db"), strict=True):
        assert f"{shown}; set MLFLOW_TRACKING_URI" in warning
    assert not (model / "others.db").exists()
    mlflow.set_tracking_uri("postgresql+psycopg://me@127.0.0.1:1/mlflow")
    assert tracked(model) is None
