"""Interrupted trainings: they continue from the last complete epoch, bit-equal, and never from another training."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.files import DataError, read_json
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train
from hlorank.training.callbacks import EpochHistory
from hlorank.training.ranking_module import RankingModule
from tests.training.training_helpers import DROPOUT, WEIGHTS, Interrupted, interrupt, validate_with

Settings = Callable[..., Config]
History = Callable[[Path], list[dict[str, str]]]
Runs = Callable[[Config], list[Run]]
Trained = Callable[..., Path]
CPU = torch.device("cpu")


def assert_same(folder: Path, other: Path) -> None:
    """Assert that two model folders hold the same bits."""
    for name in (WEIGHTS, "spec.json"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


INTERRUPTIONS: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "before a checkpoint": (EpochHistory, "on_train_epoch_end", lambda trainer: trainer.current_epoch == 1),
    "between epochs": (EpochHistory, "on_train_epoch_start", lambda trainer: trainer.current_epoch == 1),
    "in the third epoch": (RankingModule, "training_step", lambda module: module.global_step == 10),
    "in the first epoch": (RankingModule, "training_step", lambda module: module.global_step == 2),
}


@pytest.mark.parametrize(
    ("place", "left"),
    [("before a checkpoint", 8), ("in the third epoch", 4), ("in the first epoch", 12)],
)
def test_an_interrupted_training_continues(
    place: str,
    left: int,
    settings: Settings,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: History,
    runs: Runs,
) -> None:
    whole = trained(**DROPOUT)
    config = settings(**DROPOUT)
    interrupt(monkeypatch, *INTERRUPTIONS[place])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "resumed")
    assert not (tmp_path / "resumed").exists()
    (failed,) = runs(config)
    assert failed.info.status == "FAILED"
    steps: list[int] = []

    def counted(module: RankingModule) -> bool:
        steps.append(module.global_step)
        return False

    interrupt(monkeypatch, RankingModule, "training_step", counted)
    train(config, tmp_path / "resumed")

    assert steps == list(range(12 - left, 12))
    assert_same(tmp_path / "resumed", whole)
    assert history(tmp_path / "resumed") == history(whole)
    (resumed,) = runs(config)
    assert (resumed.info.run_id, resumed.info.status) == (failed.info.run_id, "FINISHED")
    about = read_json(whole / "run.json")
    first = MlflowClient(about["tracking_uri"]).get_run(about["run_id"]).data
    assert resumed.data.params.keys() == first.params.keys()
    for key in ("curves/train_loss", "curves/valid_kendall_tau"):
        assert resumed.data.metrics[key] == first.metrics[key]


def test_ctrl_c_ends_the_run_as_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    def press(module: RankingModule, *_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    config = settings(trainer__max_epochs=1)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with monkeypatch.context() as patched:
            patched.setattr(RankingModule, "training_step", press)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "model")
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    (run,) = runs(config)
    assert run.info.status == "KILLED"
    with caplog.at_level("INFO"):
        train(config, tmp_path / "model")
    (again,) = runs(config)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    (last,) = [line for line in caplog.messages if str(tmp_path / "model") in line]
    assert ("epoch 1" in last, again.info.run_id in last) == (True, True)


@pytest.mark.parametrize(("averaging", "place"), [("ema", "between epochs"), ("swa", "in the third epoch")])
def test_an_interrupted_average_continues(
    place: str,
    averaging: str,
    settings: Settings,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: History,
) -> None:
    averaged = {**DROPOUT, "trainer__averaging": averaging, "trainer__averaging_decay": 0.8}
    whole, plain = trained(**averaged), trained(**DROPOUT)
    config = settings(**averaged)
    interrupt(monkeypatch, *INTERRUPTIONS[place])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "resumed")
    train(config, tmp_path / "resumed")
    assert_same(tmp_path / "resumed", whole)
    assert history(tmp_path / "resumed") == history(whole)
    assert [row["train_loss"] for row in history(plain)] == [row["train_loss"] for row in history(whole)]


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (99, 5)])
def test_interrupted_after_the_last_epoch(
    patience: int, epochs: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    """It takes no further epoch, also if training stopped early."""
    # A further epoch would be the best one.
    validate_with(monkeypatch, [0.1, 0.7, 0.4, 0.8, 0.2])
    config = settings(trainer__patience=patience, trainer__max_epochs=5)
    train(config, tmp_path / "whole")
    assert len(history(tmp_path / "whole")) == epochs

    def raising(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr("hlorank.training.setup.save_model", raising)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "resumed")
    interrupt(monkeypatch, RankingModule, "training_step", lambda _: True)  # fails at a further step
    assert train(config, tmp_path / "resumed") == pytest.approx(0.8 if patience == 99 else 0.7)
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    assert_same(tmp_path / "resumed", tmp_path / "whole")


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
    assert len(list((tmp_path / "state" / "training").iterdir())) == 1  # of the interrupted one


@pytest.mark.parametrize("differs", ["partition", "method"])
def test_a_checkpoint_of_another_training_is_refused(
    differs: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    """For example if checkpoints were copied into the folder of a training."""
    config = settings(method="gst_e")
    if differs == "partition":
        path, smaller = Path("layout/synthetic/random"), config.partition.model_copy(update={"max_nodes": 10})
        partition_collection(Path(config.paths.features) / path, smaller, tmp_path / "segments" / path)
        other = settings(method="gst_e", paths__segments=tmp_path / "segments")
    else:
        other = settings(method="gst_ed")
    folders: list[Path] = []
    for training in (config, other):
        interrupt(monkeypatch, *INTERRUPTIONS["between epochs"])
        with pytest.raises(Interrupted):
            train(training, tmp_path / "model")
        folders += sorted(set((tmp_path / "state" / "training").iterdir()) - set(folders))
    theirs, ours = (folder / "0" / "last.ckpt" for folder in folders)
    shutil.copy(theirs, ours)
    with pytest.raises(DataError, match=re.escape(f"{ours}: {differs}: ")):
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


@pytest.mark.slow
def test_a_killed_stage_continues(settings: Settings, tmp_path: Path, history: History, runs: Runs) -> None:
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
    assert_same(tmp_path / "resumed", tmp_path / "whole")
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    assert [run.info.status for run in runs(config)] == ["FINISHED", "FINISHED"]
