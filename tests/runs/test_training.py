"""MLflow runs of trainings, and trainings that belong to a sweep or a search."""

import logging
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import mlflow
import optuna
import psutil
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hlorank.config import Config
from hlorank.data.collection import SPLITS
from hlorank.files import RUN, fingerprint, one_process, read_json
from hlorank.metrics import BEST_TAU
from hlorank.models.serialization import load_model
from hlorank.runs import training as training_module
from hlorank.runs.search import open_study
from hlorank.runs.store import FEATURES, FINGERPRINT, NOTE, PARENT_VARIABLE, VARIED_VARIABLE, Pruned, open_run
from hlorank.runs.sweeps import chosen_experiment, job_table
from hlorank.runs.training import run_name
from hlorank.stages.train import train
from hlorank.training import prepare as prepare_module
from hlorank.training.baselines.fit_baseline import fit_baseline
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import open_setup
from tests.training.training_helpers import WEIGHTS, History, Runs, Settings, validate_with

CONF = Path(__file__).parents[2] / "conf"


def test_chosen_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_experiment() is None
    for overrides, name in ((["experiment=best_layout"], "best_layout"), ([], None)):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("config", overrides, return_hydra_config=True)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", composed)
        assert chosen_experiment() == name


def test_parameters_metrics_and_artifacts_of_a_run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History, runs: Runs
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    config, folder = settings(trainer__graphs_per_step=2), tmp_path / "model"
    monkeypatch.setattr(training_module, "chosen_experiment", lambda: "best_layout")
    answers = [MlflowException("another process logs it"), *[DEFAULT] * len(SPLITS)]
    monkeypatch.setattr(mlflow, "log_input", Mock(side_effect=answers, wraps=mlflow.log_input))
    train(config, folder)
    (run,) = runs(config)
    (model,), spec = load_model(folder, torch.device("cpu"))
    assert read_json(folder / RUN)["experiment"] == "best_layout"
    assert (run.info.status, run.info.run_name) == ("FINISHED", "gst layout:synthetic:random")
    tags, parameters = run.data.tags, run.data.params
    described = {"collection": "layout:synthetic:random", "experiment": "best_layout", "method": "gst"}
    described |= {"data": spec.data, "mlflow.source.git.commit": commit}
    assert {key: tags[key] for key in described} == described
    assert (len(tags[FINGERPRINT]), "3 graphs of train" in tags[NOTE]) == (16, True)
    values = {"trainer.max_epochs": "3", "model.pooling": "['mean', 'max']", "partition.max_nodes": "20", "seed": "0"}
    values |= {"data.origin": "synthetic", "data.synthetic.train": "3"}
    assert {key: parameters[key] for key in values} == values
    libraries = {f"libraries.{name}": version(name) for name in ("torch", "torch-geometric", "numpy", "scikit-learn")}
    assert libraries.items() <= tags.items() & read_json(folder / RUN).items()
    own = {"model", "segments", "loss", "trainer", "ensemble", "evaluate"}
    sections = {key.partition(".")[0] for key in parameters}
    assert sections == {"collection", "method", "seed", "data", "featurize", "partition"} | own
    read = {"aggregation", "configs_per_graph", "redraw_epochs", "sampled"}
    assert {key for key in parameters if key.startswith("segments.")} == {f"segments.{key}" for key in read}
    inputs = {(one.tags[0].value, one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs}
    assert inputs == {(split, f"layout:synthetic:random/{split}", tags[FEATURES]) for split in SPLITS}
    (shown,) = MlflowClient().search_logged_models([run.info.experiment_id])
    assert (shown.name, shown.source_run_id, shown.status) == ("gst", run.info.run_id, "READY")
    assert {metric.key for metric in shown.metrics} == {"valid/best_kendall_tau"}

    client = MlflowClient(config.tracking.uri)
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.tags[NOTE]
    rows, metrics = history(folder), run.data.metrics
    for key, column in (("curves/train_loss", "train_loss"), ("curves/valid_kendall_tau", "valid_kendall_tau")):
        logged = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
        assert [metric.value for metric in logged] == pytest.approx([float(row[column]) for row in rows])
        assert [metric.step for metric in logged] == [3, 7, 11]
    seconds = client.get_metric_history(run.info.run_id, "train/seconds")
    assert [metric.step for metric in seconds] == [3, 7, 11], "the axis of curves over seconds, and nothing else"
    assert max(metric.value for metric in seconds) == metrics["train/seconds"]
    assert "epoch" not in metrics
    assert 1e8 < metrics["train/peak_memory_bytes"] < 1e11
    assert metrics["valid/best_kendall_tau"] == pytest.approx(max(float(row["valid_kendall_tau"]) for row in rows))
    assert 0 < 12 * metrics["train/step_seconds"] / 3 < metrics["train/seconds"] < 60
    assert metrics["train/parameters"] == sum(parameter.numel() for parameter in model.parameters())
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
    assert artifacts == {f"model/{name}" for name in ("history.csv", "run.json", "spec.json", WEIGHTS)}
    assert next((tmp_path / "artifacts").rglob(WEIGHTS)).read_bytes() == (folder / WEIGHTS).read_bytes()


@pytest.fixture
def parent(config: Config) -> str:
    """The run of a sweep."""
    with open_run(config.tracking, "sweep", {}) as (run_id, _):
        pass
    return run_id


def test_a_sweep_does_not_repeat_a_finished_training(
    settings: Settings, tmp_path: Path, client: MlflowClient, parent: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(trainer__max_epochs=1)
    best = train(config, tmp_path / "first")
    assert train(config, tmp_path / "again") == best  # outside of sweeps the outputs are always written
    assert (tmp_path / "again" / WEIGHTS).exists()
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    assert train(config, tmp_path / "sweep") == best
    assert not (tmp_path / "sweep").exists()
    assert len(runs(config)) == 3  # with the run of the sweep
    (row,) = job_table(client, parent).to_dict("records")
    first = read_json(tmp_path / "first" / RUN)["run_id"]
    assert (row["state"], row["valid_kendall_tau"], row["run_id"]) == ("finished", best, first)
    train(settings(trainer__max_epochs=1, trainer__learning_rate=0.02), tmp_path / "other")
    assert len(runs(config)) == 4


def test_a_search_prunes_a_poor_training(
    settings: Settings, tmp_path: Path, parent: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    values: dict[str, Any] = {"sweep__name": "s", "sweep__prune": True, "sweep__prune_after_trials": 1}
    values["sweep__prune_after_epochs"] = 1
    study = open_study(settings(**values).sweep, parent, create=True)

    def trained(seed: int, taus: list[float], reported: bool = False, **changes: Any) -> optuna.Trial:
        validate_with(monkeypatch, taus)
        trial = study.ask({})
        if reported:
            trial.report(taus[0], 1)  # as of a training that is resumed, of which Optuna warns
        assert train(settings(**{**values, "seed": seed, **changes}, sweep__trial=trial.number), tmp_path / str(seed))
        return trial

    study.tell(trained(0, [0.5, 0.6, 0.7], reported=True), 0.7)
    trained(1, [0.65, 0.2, 0.3])  # the best so far counts
    trained(2, [0.1, 0.2, 0.3], sweep__prune=False)
    for epochs in (1, 2):
        with pytest.raises(Pruned):
            trained(3, [0.1, 0.1, 0.9], sweep__prune_after_epochs=epochs)
        assert study.trials[-1].intermediate_values == pytest.approx(dict.fromkeys(range(1, epochs + 1), 0.1))
        assert study.trials[-1].state.name == "PRUNED"
        assert (runs(settings())[0].info.status, runs(settings())[0].data.tags["ended_by"]) == ("KILLED", "pruning")
    assert not (tmp_path / "3").exists()
    assert not list((tmp_path / "state" / "training").iterdir())


@pytest.mark.parametrize("lock", ["training", "output"])
def test_one_process_at_a_time_runs_a_training(
    lock: str, config: Config, tmp_path: Path, client: MlflowClient, parent: str, caplog: pytest.LogCaptureFixture
) -> None:
    taus, key = list[float | None](), prepare_module.prepare(config, ALONE).key
    name = key if lock == "training" else fingerprint(str(tmp_path / "model"))
    client.log_text(parent, "{}", "model/spec.json")
    thread = threading.Thread(target=lambda: taus.append(train(config, tmp_path / "model")))
    with caplog.at_level(logging.INFO), one_process(tmp_path / "state" / "locks" / name, "it"):
        thread.start()
        while "waiting for it" not in caplog.text:
            time.sleep(0.01)
        client.set_tag(parent, FINGERPRINT, key)
        client.log_metric(parent, "valid/best_kendall_tau", 0.125)
    thread.join()
    assert (taus, (tmp_path / "model" / "spec.json").read_text()) == ([0.125], "{}")


def test_the_record_has_no_password(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("log_artifacts", "log_metrics"):
        monkeypatch.setattr(f"mlflow.{name}", lambda *_, **__: None)
    monkeypatch.setattr("mlflow.MlflowClient", Mock())
    monkeypatch.setattr("mlflow.get_tracking_uri", lambda: "http://me:secret@127.0.0.1:9")
    setup = open_setup(settings(method="random"))
    monkeypatch.setattr("hlorank.runs.store.check_server", Mock())
    metrics = training_module.Metrics("0" * 32, tmp_path / "metrics.json")
    training_module._record(setup, tmp_path, "0" * 32, metrics, fit_baseline(setup, "random", 0))
    assert read_json(tmp_path / RUN)["tracking_uri"] == "http://***@127.0.0.1:9"


def test_a_training_goes_on_without_its_store_and_the_same_command_records_it(
    settings: Settings,
    client: MlflowClient,
    tmp_path: Path,
    runs: Runs,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, folder, log_batch, retries = settings(), tmp_path / "model", MlflowClient.log_batch, list[str]()

    def ends_after_an_epoch(self: MlflowClient, run_id: str, metrics: Sequence[Metric] = (), **others: Any) -> None:
        if any(metric.step > 3 for metric in metrics):
            retries.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "default"))
            raise MlflowException("Connection refused")
        log_batch(self, run_id, metrics, **others)

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", ends_after_an_epoch)
        with pytest.raises(MlflowException):
            train(config, folder)
    assert retries == ["0", "default"], "epochs wait for no server, and the second not again for a minute"
    (run,) = runs(config)
    weights = (folder / WEIGHTS).read_bytes()
    assert (run.info.status, BEST_TAU in run.data.metrics) == ("FAILED", False)
    monkeypatch.setattr(RankingModule, "training_step", lambda *_: pytest.fail("it trains again"))
    tau = train(config, folder)
    (run,) = runs(config)
    assert (run.info.status, run.data.metrics[BEST_TAU]) == ("FINISHED", tau)
    assert (folder / WEIGHTS).read_bytes() == weights
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "curves/train_loss")}
    assert list(logged) == [3, 7, 11]
    assert list(logged.values()) == pytest.approx([float(row["train_loss"]) for row in history(folder)])
    assert not list((tmp_path / "state").rglob("metrics.json"))


def test_a_database_that_fails_is_one_line(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_run(config.tracking, "job", {}) as (run_id, _):
        with sqlite3.connect(config.tracking.uri.removeprefix("sqlite:///")) as database:
            database.execute("DROP TABLE metrics")
        training_module.Metrics(run_id, tmp_path / "metrics.json").log({"a": 1.0}, 1)
    (message,) = caplog.messages
    assert "no such table: metrics" in message
    assert capfd.readouterr().err == ""


def test_dvc_gets_the_result_of_a_training_whose_end_it_did_not_record(
    settings: Settings, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill of DVC alone, or of all after the training: the run is finished, and its outputs are removed."""
    config = settings(trainer__max_epochs=1)
    monkeypatch.setenv("DVC_STAGE", "train@layout/synthetic/random-gst")
    best = train(config, tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    shutil.rmtree(tmp_path / "model")
    assert train(config, tmp_path / "model") == best
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == files
    assert len(runs(config)) == 1

    others: list[Any] = [(prepare_module, name, lambda *_: "f" * 64) for name in ("code_digest", "version")]
    for option in ("--force", "-sf"):  # of the process that starts the shell of the stage
        calls = [None, ["/bin/python", "/bin/dvc", "repro", option]]
        parents = [Mock(as_dict=Mock(return_value={"cmdline": call})) for call in calls]
        others.append((psutil.Process, "parents", Mock(return_value=parents)))
    for number, (owner, name, value) in enumerate(others, start=2):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert train(config, tmp_path / "model") == best, "it is another training, or has to be done again"
        assert len(runs(config)) == number
    shutil.rmtree(tmp_path / "artifacts")
    assert train(config, tmp_path / "model") == best, "without the model in the store, it is trained again"
    assert len(runs(config)) == 6


def test_the_name_of_a_run_begins_with_what_differs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, overrides, changed in (
        (0, [], ""),
        (2, [], "seed=2 "),
        (0, ["seed=0", "collection=layout/cpu/random", "tracking.uri=x"], "seed=0 "),
        (2, ["+trainer.warmup=0.012345678", "loss=hinge"], "warmup=0.01235 loss=hinge seed=2 "),
    ):
        setup = open_setup(settings(seed=seed))
        monkeypatch.delenv("DVC_EXP_NAME", raising=False)
        assert run_name(setup, overrides) == f"gst {changed}layout:synthetic:random"
        monkeypatch.setenv("DVC_EXP_NAME", "wide-model")
        assert run_name(setup, overrides) == f"gst wide-model {changed}layout:synthetic:random"
    monkeypatch.setenv(VARIED_VARIABLE, "collection,loss")
    assert run_name(setup, overrides) == "loss=hinge layout:synthetic:random gst wide-model warmup=0.01235 seed=2"


def test_settings_of_the_data_are_those_of_the_stores(
    settings: Settings, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"featurize__scaling": "minmax", "partition__max_nodes": 7, "trainer__max_epochs": 1}
    train(settings(**changes), tmp_path / "model")
    assert "no effect" not in caplog.text  # outside of experiments the stores alone decide
    monkeypatch.setattr(training_module, "chosen_experiment", lambda: "synthetic")
    train(settings(**changes), tmp_path / "model")
    first, second = (message for message in caplog.messages if "no effect" in message)
    assert (first.startswith("featurize.scaling=minmax: "), "standard" in first) == (True, True)
    assert (second.startswith("partition.max_nodes=7: "), "20" in second) == (True, True)
    train(settings(method="full", **changes), tmp_path / "full")
    whole, _, segments = (run.data.params for run in runs(settings()))
    assert (segments["featurize.scaling"], segments["partition.max_nodes"]) == ("standard", "20")
    assert "partition.max_nodes" not in whole
