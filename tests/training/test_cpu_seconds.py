"""Whole trainings with a budget of CPU time, on a clock on which each step and each validation takes a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from mlflow.tracking import MlflowClient

from hlorank.config import Config
from hlorank.files import read_json
from hlorank.models.serialization import load_model
from hlorank.training import callbacks
from hlorank.training.ranking_module import RankingModule
from hlorank.training.trainer import train
from tests.training.training_helpers import Interrupted

Settings = Callable[..., Config]


class Clock:
    """Clock that advances by a second with each step and each validated graph.

    Attributes:
        now: CPU seconds of the process.
        steps: steps taken.
        rates: the learning rate at the end of each epoch.
        crash: the step that fails.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.steps = 0
        self.rates: list[float] = []
        self.crash: int | None = None
        monkeypatch.setattr(
            callbacks, "time", SimpleNamespace(process_time=lambda: self.now, perf_counter=time.perf_counter)
        )
        step, validate, end = (
            RankingModule.training_step,
            RankingModule.validation_step,
            RankingModule.on_train_epoch_end,
        )

        def training_step(module: RankingModule, *arguments: Any) -> Any:
            if self.steps == self.crash:
                self.crash = None
                raise Interrupted
            self.steps += 1
            self.now += 1
            return step(module, *arguments)

        def validation_step(module: RankingModule, *arguments: Any) -> None:
            self.now += 1
            validate(module, *arguments)

        def on_train_epoch_end(module: RankingModule) -> None:
            self.rates.append(float(module.trainer.optimizers[0].param_groups[0]["lr"]))
            end(module)

        monkeypatch.setattr(RankingModule, "training_step", training_step)
        monkeypatch.setattr(RankingModule, "validation_step", validation_step)
        monkeypatch.setattr(RankingModule, "on_train_epoch_end", on_train_epoch_end)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def epochs(folder: Path) -> int:
    return len(pd.read_csv(folder / "history.csv"))


# An epoch has four steps and validates two graphs: it ends after 6 s.
@pytest.mark.parametrize(
    ("seconds", "graphs_per_step", "steps", "rows", "last_rate"),
    [
        (7.5, 1, 6, 2, 0.0),  # in the middle of the second epoch, which is validated
        (5.5, 1, 4, 1, None),  # in the validation of the first, so before the rate is 0
        (6.0, 1, 4, 1, None),
        (2.5, 2, 4, 1, 0.0),  # never between the graphs of a step
        (1e9, 1, 12, 3, 0.0),
    ],
)
def test_a_training_ends_with_its_budget(
    seconds: float,
    graphs_per_step: int,
    steps: int,
    rows: int,
    last_rate: float | None,
    clock: Clock,
    settings: Settings,
    tmp_path: Path,
) -> None:
    config = settings(trainer__cpu_seconds=seconds, trainer__graphs_per_step=graphs_per_step)
    best = train(config, tmp_path / "model")
    assert best is not None
    assert clock.steps == steps
    assert epochs(tmp_path / "model") == rows
    run = MlflowClient(config.tracking.uri).get_run(read_json(tmp_path / "model/run.json")["run_id"])
    assert ("ended_by" in run.data.tags) == (seconds < 1e9)
    _, spec = load_model(tmp_path / "model", torch.device("cpu"))
    assert spec.steps == steps // graphs_per_step
    if last_rate is not None:
        assert clock.rates[-1] == pytest.approx(last_rate, abs=1e-12)
    assert all(rate > 0 for rate in clock.rates[:-1])


@pytest.mark.parametrize("crash", [5, 7])
def test_an_interrupted_training_has_no_new_budget(
    crash: int, clock: Clock, settings: Settings, tmp_path: Path
) -> None:
    config = settings(trainer__cpu_seconds=9)
    clock.crash = crash - 1
    with pytest.raises(Interrupted):
        train(config, tmp_path / "model")
    clock.now, clock.steps = 3.0, 0  # another process continues from the end of the first epoch, after 6 s
    train(config, tmp_path / "model")
    assert clock.steps == 3
    assert epochs(tmp_path / "model") == 2


def test_a_training_that_used_up_its_budget_takes_no_other_step(
    clock: Clock, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: Any) -> None:
        raise Interrupted

    config = settings(trainer__cpu_seconds=7.5, trainer__averaging="swa")
    with monkeypatch.context() as patched:
        patched.setattr("hlorank.training.trainer.save_model", raising)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "model")
    assert clock.steps == 6
    clock.now = 3.0
    train(config, tmp_path / "model")
    assert clock.steps == 6
    assert epochs(tmp_path / "model") == 2


def test_the_members_of_an_ensemble_share_the_budget(clock: Clock, settings: Settings, tmp_path: Path) -> None:
    train(settings(trainer__cpu_seconds=6, ensemble__seeds=2), tmp_path / "model")
    assert clock.steps == 2 * 3
    assert pd.read_csv(tmp_path / "model/history.csv")["member"].tolist() == [0, 1]
