"""Whole trainings: outputs, determinism, interruption, and what MLflow is told."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.scoring import score_configurations
from hlorank.models.serialization import load_model
from hlorank.partition.partition_collection import partition_collection
from hlorank.sweeps.jobs import adopted, rows
from hlorank.sweeps.trial import open_study
from hlorank.tracking import FINGERPRINT, PARENT_VARIABLE, Pruned, open_run
from hlorank.training.callbacks import EpochHistory
from hlorank.training.mlflow_run import alone
from hlorank.training.ranking_module import RankingModule
from hlorank.training.run import train

Settings = Callable[..., Config]
History = Callable[[Path], list[dict[str, str]]]
Runs = Callable[[Config], list[Run]]
CPU = torch.device("cpu")
WEIGHTS = "weights.safetensors"
DROPOUT = {"model__dropout": 0.2, "model__block": "[layer_norm,sage,gelu,dropout,residual]"}


class Interrupted(Exception):
    """Stands for a crash."""


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[[Any], bool]) -> None:
    """Raises from a method before it does its work, on the first call for which `when(its first argument)` holds."""
    plain = getattr(owner, name)

    def raising(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if when(self if owner is RankingModule else arguments[0]):
            monkeypatch.setattr(owner, name, plain)
            raise Interrupted
        return plain(self, *arguments, **keywords)

    monkeypatch.setattr(owner, name, raising)


@pytest.mark.parametrize(
    ("collection", "method"),
    [("layout:synthetic:random", "full"), ("layout:synthetic:random", "gst"), ("tile:synthetic", "full")],
)
def test_outputs(
    collection: str, method: str, settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = settings(collection=collection, method=method)
    best = train(config, tmp_path / "model")
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "history.csv",
        "run.json",
        "spec.json",
        WEIGHTS,
    ]
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, collection, method)
    assert spec.whole_graph == (spec.partition == "") == (method == "full")
    assert (spec.steps, spec.model) == (12, config.model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    rows = history(tmp_path / "model")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert best == pytest.approx(max(float(row["valid_kendall_tau"]) for row in rows))
    assert not list((tmp_path / "state" / "training").iterdir())  # nothing to resume is left
    (run,) = runs(config)
    assert json.loads((tmp_path / "model" / "run.json").read_text()) == {
        "run_id": run.info.run_id,
        "tracking_uri": config.tracking.uri,
    }


def test_what_mlflow_is_told(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History, runs: Runs
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    config = settings(trainer__graphs_per_step=2)
    train(config, tmp_path / "model")
    (run,) = runs(config)
    assert len(run.data.tags[FINGERPRINT]) == 16
    _, spec = load_model(tmp_path / "model", CPU)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "gst seed 0 layout:synthetic:random"
    tags = run.data.tags
    assert {key: tags[key] for key in ("collection", "method", "data", "trained")} == {
        "collection": "layout:synthetic:random",
        "method": "gst",
        "data": spec.data,
        "trained": "True",
    }
    assert tags["mlflow.source.git.commit"] == commit
    parameters = run.data.params
    assert parameters["trainer.max_epochs"] == "3"
    assert parameters["model.pooling"] == "['mean', 'max']"
    assert parameters["data.synthetic.seed"] == "0"
    assert parameters["seed"] == "0"

    client = MlflowClient(config.tracking.uri)
    rows = history(tmp_path / "model")
    for key, column in (("train/loss", "train_loss"), ("valid/kendall_tau", "valid_kendall_tau")):
        logged = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
        assert [metric.value for metric in logged] == pytest.approx([float(row[column]) for row in rows])
        assert [metric.step for metric in logged] == [3, 7, 11]
    metrics = run.data.metrics
    seconds = client.get_metric_history(run.info.run_id, "train/seconds")
    assert [metric.step for metric in seconds] == [3, 7, 11], "the axis of curves over seconds, and nothing else"
    assert sorted(metric.value for metric in seconds)[-1] == metrics["train/seconds"]
    assert 0 < metrics["train/step_seconds"] < 10
    assert metrics["train/configs_per_second"] == pytest.approx(8 / metrics["train/step_seconds"])
    assert metrics["train/peak_memory_bytes"] > 1e8
    assert metrics["valid/best_kendall_tau"] == pytest.approx(max(float(row["valid_kendall_tau"]) for row in rows))
    assert 12 * metrics["train/step_seconds"] / 3 < metrics["train/seconds"] < 60
    (model,), _ = load_model(tmp_path / "model", CPU)
    assert metrics["train/parameters"] == sum(parameter.numel() for parameter in model.parameters())
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
    assert artifacts == {f"model/{name}" for name in ("history.csv", "run.json", "spec.json", WEIGHTS)}
    logged_weights = next((tmp_path / "artifacts").rglob(WEIGHTS))
    assert logged_weights.read_bytes() == (tmp_path / "model" / WEIGHTS).read_bytes()


def test_the_same_training_gives_the_same_bits(
    settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = settings(**DROPOUT, trainer__sampling="gumbel_top_k", loss="listmle")
    torch.rand(7)  # the state of the global generator plays no role
    first = train(config, tmp_path / "first")
    torch.rand(3)
    assert train(config, tmp_path / "second") == first
    assert (tmp_path / "second" / WEIGHTS).read_bytes() == (tmp_path / "first" / WEIGHTS).read_bytes()
    assert history(tmp_path / "second") == history(tmp_path / "first")
    assert len(runs(config)) == 2
    train(settings(**DROPOUT, trainer__sampling="gumbel_top_k", loss="listmle", seed=1), tmp_path / "other")
    assert (tmp_path / "other" / WEIGHTS).read_bytes() != (tmp_path / "first" / WEIGHTS).read_bytes()


INTERRUPTIONS: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "before a checkpoint": (EpochHistory, "on_train_epoch_end", lambda trainer: trainer.current_epoch == 1),
    "between epochs": (EpochHistory, "on_train_epoch_start", lambda trainer: trainer.current_epoch == 1),
    "in the third epoch": (RankingModule, "training_step", lambda module: module.global_step == 10),
    "in the first epoch": (RankingModule, "training_step", lambda module: module.global_step == 2),
}


@pytest.mark.parametrize(
    ("place", "left"),
    [("before a checkpoint", 8), ("between epochs", 8), ("in the third epoch", 4), ("in the first epoch", 12)],
)
def test_an_interrupted_training_goes_on(
    place: str,
    left: int,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: History,
    runs: Runs,
) -> None:
    config = settings(**DROPOUT)
    train(config, tmp_path / "whole")
    (whole,) = runs(config)
    interrupt(monkeypatch, *INTERRUPTIONS[place])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "resumed")
    assert not (tmp_path / "resumed").exists()
    assert {run.info.status for run in runs(config)} == {"FINISHED", "FAILED"}
    (failed,) = [run for run in runs(config) if run.info.status == "FAILED"]
    steps: list[int] = []

    def counted(module: RankingModule) -> bool:
        steps.append(module.global_step)
        return False

    interrupt(monkeypatch, RankingModule, "training_step", counted)
    train(config, tmp_path / "resumed")

    assert steps == list(range(12 - left, 12))
    assert (tmp_path / "resumed" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    assert (tmp_path / "resumed" / "spec.json").read_bytes() == (tmp_path / "whole" / "spec.json").read_bytes()
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    assert {run.info.run_id for run in runs(config)} == {whole.info.run_id, failed.info.run_id}
    (resumed,) = [run for run in runs(config) if run.info.run_id == failed.info.run_id]
    assert resumed.info.status == "FINISHED"
    assert resumed.data.params == whole.data.params
    for key in ("train/loss", "valid/kendall_tau"):
        assert resumed.data.metrics[key] == whole.data.metrics[key]


@pytest.mark.parametrize("averaging", ["ema", "swa"])
@pytest.mark.parametrize("place", ["between epochs", "in the third epoch"])
def test_an_interrupted_average_goes_on(
    place: str, averaging: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    config = settings(**DROPOUT, trainer__averaging=averaging, trainer__averaging_decay=0.8)
    train(config, tmp_path / "whole")
    interrupt(monkeypatch, *INTERRUPTIONS[place])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "resumed")
    train(config, tmp_path / "resumed")
    assert (tmp_path / "resumed" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    train(settings(**DROPOUT), tmp_path / "plain")
    plain, averaged = (history(tmp_path / name) for name in ("plain", "whole"))
    # The steps are the same, and what is validated after them is not.
    assert [row["train_loss"] for row in plain] == [row["train_loss"] for row in averaged]
    assert (tmp_path / "plain" / WEIGHTS).read_bytes() != (tmp_path / "whole" / WEIGHTS).read_bytes()


def validate_with(monkeypatch: pytest.MonkeyPatch, taus: list[float]) -> dict[int, dict[str, torch.Tensor]]:
    """Makes validation give these figures, one an epoch, and keep the weights that it sees."""
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def validation_step(self: RankingModule, *_: Any) -> None:
        seen[self.current_epoch] = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.log("valid/kendall_tau", torch.tensor(taus[self.current_epoch]), on_epoch=True, batch_size=1)

    monkeypatch.setattr(RankingModule, "validation_step", validation_step)
    return seen


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (99, 5)])
def test_interrupted_after_the_last_epoch(
    patience: int, epochs: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    """Also where training stopped early: it must not take another epoch."""
    # Were there another epoch, it would be the best.
    validate_with(monkeypatch, [0.1, 0.7, 0.4, 0.8, 0.2])
    config = settings(trainer__patience=patience, trainer__max_epochs=5)
    train(config, tmp_path / "whole")
    assert len(history(tmp_path / "whole")) == epochs

    def raising(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr("hlorank.training.run.save_model", raising)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "resumed")
    interrupt(monkeypatch, RankingModule, "training_step", lambda _: True)  # were there another step
    assert train(config, tmp_path / "resumed") == pytest.approx(0.8 if patience == 99 else 0.7)
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    for name in (WEIGHTS, "spec.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_another_configuration_is_another_training(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History, runs: Runs
) -> None:
    interrupt(monkeypatch, *INTERRUPTIONS["between epochs"])
    config = settings()
    with pytest.raises(Interrupted):
        train(config, tmp_path / "model")
    train(settings(trainer__learning_rate=0.02), tmp_path / "model")
    assert len(history(tmp_path / "model")) == 3
    assert sorted(run.info.status for run in runs(config)) == ["FAILED", "FINISHED"]
    assert len(list((tmp_path / "state" / "training").iterdir())) == 1  # of the one that waits to go on


def cut_otherwise(config: Config, folder: Path) -> Config:
    """The same configuration on smaller segments."""
    path = Path("layout/synthetic/random")
    options = config.partition.model_copy(update={"max_nodes": 10, "workers": 1})
    partition_collection(Path(config.paths.features) / path, options, folder / path)
    return config.model_copy(update={"paths": config.paths.model_copy(update={"segments": str(folder)})})


def partition_of(config: Config) -> str:
    path = Path("layout/synthetic/random")
    return GraphLoader(Path(config.paths.features) / path, Path(config.paths.segments) / path, CPU).partition


@pytest.mark.parametrize("differs", ["partition", "method", "model.width"])
def test_a_checkpoint_of_another_training_is_refused(
    differs: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    """As where checkpoints are copied into the folder of a training."""
    config = settings(method="gst_e")
    if differs == "partition":
        other = cut_otherwise(config, tmp_path / "segments")
        found, expected = partition_of(config), partition_of(other)
    else:
        other = settings(**{"method": "gst_e", differs: {"method": "gst_ed", "model.width": 12}[differs]})
        found, expected = (attrgetter(differs)(one) for one in (config, other))
    folders: list[Path] = []
    for one in (config, other):
        interrupt(monkeypatch, *INTERRUPTIONS["between epochs"])
        with pytest.raises(Interrupted):
            train(one, tmp_path / "model")
        folders += sorted(set((tmp_path / "state" / "training").iterdir()) - set(folders))
    theirs, ours = (folder / "0" / "last.ckpt" for folder in folders)
    shutil.copy(theirs, ours)
    message = f"{ours}: {differs}: expected {expected!r}, as in this training, found {found!r}; remove {ours.parent}"
    with pytest.raises(DataError, match=re.escape(message)):
        train(other, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    shutil.rmtree(ours.parent)  # the remedy
    train(other, tmp_path / "model")
    assert len(history(tmp_path / "model")) == 3


def test_a_lost_run_does_not_stop_a_training(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    config = settings()
    interrupt(monkeypatch, *INTERRUPTIONS["between epochs"])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "model")
    (lost,) = runs(config)
    MlflowClient(config.tracking.uri).delete_run(lost.info.run_id)
    train(config, tmp_path / "model")
    (run,) = runs(config)
    assert run.info.run_id != lost.info.run_id
    assert run.data.params["seed"] == "0"


@pytest.mark.parametrize("averaging", ["none", "ema", "swa"])
def test_the_best_epoch_is_kept(
    averaging: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the weights that were validated, averaged ones where they are."""
    seen = validate_with(monkeypatch, [0.1, 0.7, 0.4, 0.3, 0.2])
    config = settings(trainer__max_epochs=5, trainer__patience=2, trainer__averaging=averaging)
    best = train(config, tmp_path / "model")
    assert best == pytest.approx(0.7)
    assert list(seen) == [0, 1, 2, 3]  # and not the fifth: two epochs without a better one
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert all(torch.equal(value, seen[1][name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, seen[3][name]) for name, value in model.state_dict().items())
    assert spec.steps == 16


def test_nothing_to_train_on(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    history: History,
    runs: Runs,
) -> None:
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: [])
    config = settings()
    with caplog.at_level(logging.WARNING):
        assert train(config, tmp_path / "model") is None
    assert "nothing is left to train on; the model keeps its initial weights" in caplog.text
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert spec.steps == 0
    torch.manual_seed(config.seed)
    initial = CostModel(config.model, model.sizes, config.segments.aggregation)
    initial.encoder.start_opcodes(spec.features.opcode_embedding)
    for name, value in initial.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert history(tmp_path / "model") == []
    (run,) = runs(config)
    assert (run.info.status, run.data.tags["trained"]) == ("FINISHED", "False")


def test_nothing_to_validate_on(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, without_valid: None, history: History
) -> None:
    config = settings(trainer__max_epochs=6, trainer__patience=2, trainer__learning_rate=1.0)
    with caplog.at_level(logging.WARNING):
        assert train(config, tmp_path / "model") is None
    assert "no graph of valid can be ranked" in caplog.text
    rows = history(tmp_path / "model")
    assert {row["valid_kendall_tau"] for row in rows} == {""}
    losses = [float(row["train_loss"]) for row in rows]
    assert len(rows) == min(6, losses.index(min(losses)) + 1 + 2)  # it stops by the loss


def test_mixed_precision(settings: Settings, tmp_path: Path, history: History) -> None:
    train(settings(trainer__precision="bf16-mixed"), tmp_path / "mixed")
    train(settings(), tmp_path / "single")
    losses = [[float(row["train_loss"]) for row in history(tmp_path / name)] for name in ("mixed", "single")]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0] != losses[1]
    (model,), _ = load_model(tmp_path / "mixed", CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_training_learns(settings: Settings, tmp_path: Path, without_valid: None) -> None:
    """The ranking of the graphs that it was trained on is far better than chance."""
    config = settings(trainer__max_epochs=4, trainer__steps_per_epoch=40, trainer__configs_per_step=20, model__width=16)
    train(config, tmp_path / "model")
    (model,), _ = load_model(tmp_path / "model", CPU)
    path = Path("layout/synthetic/random")
    graphs = GraphLoader(Path(config.paths.features) / path, Path(config.paths.segments) / path, CPU)
    taus = []
    for name in graphs.store.graphs("train"):
        graph = graphs.open("train", name)
        rows, labels = graph.features.targets()
        taus.append(kendall_tau(score_configurations(model, graph, rows, 2**30), labels))
    assert min(taus) > 0.4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "other"}, "method: expected one of full, gst"),
        ({"loss.hinge": 0}, "loss: all weights are 0"),
        ({"loss.mse": -1}, "loss.mse=-1.0: set it to 0, or to a finite weight above"),
        ({"trainer.averaging": "mean"}, "trainer.averaging: expected one of none, ema, swa, found 'mean'"),
        ({"trainer.averaging_decay": 1}, "trainer.averaging_decay=1.0: set it above 0 and below 1"),
        ({"trainer.cpu_seconds": 0}, "trainer.cpu_seconds=0.0: set it above 0, or to null"),
        ({"trainer.cpu_seconds": "nan"}, "trainer.cpu_seconds=nan: set it above 0, or to null"),
        ({"ensemble.seeds": 0}, "ensemble.seeds=0: set it to at least 1"),
        ({"ensemble.folds": 0}, "ensemble.folds=0: set it to at least 1"),
        ({"ensemble.folds": 4}, "ensemble.folds=4: the 3 graphs of train are of only"),
        ({"trainer.sampling": "slow"}, "trainer.sampling"),
        ({"trainer.precision": "64"}, "trainer.precision: expected one of 32-true"),
        ({"trainer.accelerator": "tpu"}, "trainer.accelerator: expected one of auto, cpu, cuda"),
        ({"segments.aggregation": "max"}, "segments.aggregation"),
        ({"segments.sampled": 0}, "segments.sampled=0: set it to at least 1"),
        ({"segments.keep_probability": 0}, "segments.keep_probability=0.0: set it above 0, to at most 1"),
        ({"segments.keep_probability": 1.5}, "segments.keep_probability=1.5: set it above 0, to at most 1"),
        ({"segments.keep_probability": "nan"}, "segments.keep_probability=nan: set it above 0, to at most 1"),
        ({"segments.configs_per_graph": 1}, "segments.configs_per_graph=1: set it to at least 2, or to null for all"),
        ({"segments.redraw_epochs": 0}, "segments.redraw_epochs=0: set it to at least 1"),
        ({"segments.finetune_epochs": -1}, "segments.finetune_epochs=-1: set it to at least 1"),
        ({"method": "gst_e", "segments.table_dtype": "int8"}, "segments.table_dtype: expected one of float32, float16"),
        ({"method": "gst_e", "segments.table_bytes": 0}, "segments.table_bytes=0: one entry takes 264 bytes"),
        ({"method": "gst_e", "segments.table_bytes": 10**4}, "segments.table_bytes=10000: the working set of"),
        ({"trainer.max_epochs": 0}, "trainer.max_epochs=0: set it to at least 1"),
        ({"trainer.configs_per_step": 1}, "trainer.configs_per_step=1: set it to at least 2"),
        ({"model.opcode_width": 5}, "set model.opcode_width to featurize.opcode_width"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    values: dict[str, Any], message: str, settings: Settings, tmp_path: Path, runs: Runs
) -> None:
    config = settings(**values)
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(config, tmp_path / "model")
    assert not runs(config)
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.accelerator=cuda: PyTorch finds no CUDA device"):
        train(settings(trainer__accelerator="cuda"), tmp_path / "model")


def test_missing_data_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run the stage featurize"):
        train(settings(paths__features=tmp_path / "none"), tmp_path / "model")
    with pytest.raises(DataError, match="run the stage partition"):
        train(settings(paths__segments=tmp_path / "none"), tmp_path / "model")


@pytest.mark.slow
def test_a_killed_stage_goes_on(settings: Settings, tmp_path: Path, history: History, runs: Runs) -> None:
    """Kill -9 of the process group of the real command, then the same command again."""
    config = settings(**DROPOUT, trainer__max_epochs=30, trainer__patience=99, output=tmp_path / "resumed")
    train(config, tmp_path / "whole")
    root = Path(hlorank.__file__).parents[2]
    shutil.copytree(root / "conf", tmp_path / "conf")
    OmegaConf.save(config.model_dump(mode="json"), tmp_path / "params.yaml")
    command = [sys.executable, "-m", "hlorank.stages.train", "--config-dir", ".", "--config-name", "params"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}

    killed = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    end = time.monotonic() + 120
    while not list((tmp_path / "state").rglob("last.ckpt")):
        assert killed.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "resumed").exists()

    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    for name in (WEIGHTS, "spec.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    assert [run.info.status for run in runs(config)] == ["FINISHED", "FINISHED"]


@pytest.fixture
def parent(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sweep that this process is a job of."""
    with open_run(settings().tracking, "sweep", {}) as (run_id, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, run_id)
    return run_id


def test_a_sweep_does_not_repeat_what_has_finished(
    settings: Settings,
    tmp_path: Path,
    parent: str,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, client = settings(), MlflowClient(settings().tracking.uri)
    monkeypatch.delenv(PARENT_VARIABLE)
    best = train(config, tmp_path / "first")
    assert train(config, tmp_path / "again") == best  # outside of sweeps outputs must be there
    assert (tmp_path / "again" / WEIGHTS).exists()
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    with caplog.at_level(logging.INFO):
        assert train(config, tmp_path / "sweep") == best
    assert not (tmp_path / "sweep").exists()
    assert len(runs(config)) == 3  # with that of the sweep
    (taken,) = adopted(client, parent)
    assert f"run {taken} has finished this training: validation Kendall tau {best:.4f}" in caplog.text
    assert [(row.state, row.tau, row.run_id) for row in rows(client, parent)] == [("finished", best, taken)]
    train(settings(trainer__learning_rate=0.02), tmp_path / "other")
    assert len(runs(config)) == 4


def test_what_tells_trainings_apart(settings: Settings, tmp_path: Path, runs: Runs) -> None:
    """What can't change the result is not part of it."""
    changes: list[dict[str, Any]] = [
        {},
        {"sweep__name": "s"},
        {"evaluate__memory_bytes": 10**8},
        {"seed": 1},
        {"model__width": 4},
    ]
    changes += [{"method": "full"}]
    keys = []
    for values in changes:
        config = settings(trainer__max_epochs=1, trainer__steps_per_epoch=1, **values)
        train(config, tmp_path / "model")
        keys.append(runs(config)[0].data.tags[FINGERPRINT])
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys)) == 4


def test_a_search_gives_up_a_poor_training(
    settings: Settings, tmp_path: Path, parent: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {
        "sweep__name": "s",
        "sweep__prune": True,
        "sweep__prune_after_trials": 1,
        "sweep__prune_after_epochs": 1,
    }
    study = open_study(settings(**values).sweep, parent, create=True)
    validate_with(monkeypatch, [0.5, 0.6, 0.7])
    good = study.ask({}).number
    assert train(settings(**values, sweep__trial=good), tmp_path / "good") == pytest.approx(0.7)
    study.tell(good, 0.7)
    validate_with(monkeypatch, [0.65, 0.2, 0.3])  # the best so far counts
    kept = study.ask({}).number
    train(settings(**values, seed=1, sweep__trial=kept), tmp_path / "kept")
    validate_with(monkeypatch, [0.1, 0.1, 0.9])
    poor = study.ask({}).number
    values["sweep__prune_after_epochs"] = 2
    with pytest.raises(Pruned):
        train(settings(**values, seed=2, sweep__trial=poor), tmp_path / "poor")
    assert study.trials[poor].intermediate_values == pytest.approx({1: 0.1, 2: 0.1})
    assert study.trials[poor].state.name == "PRUNED"
    assert runs(settings())[0].info.status == "KILLED"
    assert not (tmp_path / "poor").exists()
    assert not list((tmp_path / "state" / "training").iterdir())


def test_a_training_is_done_by_one_process_at_a_time(
    settings: Settings, tmp_path: Path, parent: str, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that waited finds it done."""
    config, taus = settings(), []
    with open_run(config.tracking, "other", {}) as (other, _):
        pass
    train(config, tmp_path / "probe")
    (probe,) = [run for run in runs(config) if FINGERPRINT in run.data.tags]
    key = probe.data.tags[FINGERPRINT]
    MlflowClient(config.tracking.uri).delete_run(probe.info.run_id)
    thread = threading.Thread(target=lambda: taus.append(train(config, tmp_path / "model")))
    with caplog.at_level(logging.INFO), alone(config, key):
        thread.start()
        while "waiting for it" not in caplog.text:
            time.sleep(0.01)
        client = MlflowClient(config.tracking.uri)
        client.set_tag(other, FINGERPRINT, key)
        client.log_metric(other, "valid/best_kendall_tau", 0.125)
    thread.join()
    assert taus == [0.125]
