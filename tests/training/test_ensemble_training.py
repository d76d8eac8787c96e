"""Whole trainings of ensembles: their files, their metrics, and the member at which they are resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.models.serialization import load_model
from hlorank.stages.train import train
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import Step
from tests.training.training_helpers import WEIGHTS

Settings = Callable[..., Config]
CPU = torch.device("cpu")


def weights_of(folder: Path, member: int) -> dict[str, torch.Tensor]:
    prefix = f"{member}."
    weights = load_file(folder / WEIGHTS)
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("method", ["gst", "gst_efd"])
def test_members_are_the_trainings_of_their_seeds(method: str, settings: Settings, tmp_path: Path) -> None:
    config = settings(method=method, ensemble__seeds=2)
    best = train(config, tmp_path / "both")
    members, spec = load_model(tmp_path / "both", CPU)
    assert (len(members), spec.members, spec.steps) == (2, 2, 24)
    rows = pd.read_csv(tmp_path / "both/history.csv")
    taus = []
    for number, member in enumerate(prepare(config, ALONE).members):
        taus.append(train(settings(method=method, seed=member.seed), tmp_path / str(number)))
        assert same(weights_of(tmp_path / "both", number), weights_of(tmp_path / str(number), 0))
        alone = pd.read_csv(tmp_path / str(number) / "history.csv").drop(columns="member")
        own = rows[rows["member"] == number].drop(columns="member")
        pd.testing.assert_frame_equal(own.reset_index(drop=True), alone)
    assert not same(weights_of(tmp_path / "both", 0), weights_of(tmp_path / "both", 1))
    assert best == pytest.approx(sum(tau for tau in taus if tau is not None) / 2)


def test_metrics_of_a_member_are_logged_under_its_name(settings: Settings, tmp_path: Path) -> None:
    config = settings(ensemble__seeds=2)
    best = train(config, tmp_path / "model")
    client = MlflowClient(config.tracking.uri)
    run = client.get_run(json.loads((tmp_path / "model/run.json").read_text())["run_id"])
    assert run.info.status == "FINISHED"
    metrics = run.data.metrics
    names = {"curves/train_loss", "train/step_seconds", "curves/valid_kendall_tau"}
    assert {f"member_{number}/{name}" for number in (0, 1) for name in names} <= metrics.keys()
    assert "curves/train_loss" not in metrics
    assert "curves/valid_kendall_tau" not in metrics
    assert metrics["valid/best_kendall_tau"] == best
    members, _ = load_model(tmp_path / "model", CPU)
    assert metrics["train/parameters"] == 2 * sum(parameter.numel() for parameter in members[0].parameters())
    rows = pd.read_csv(tmp_path / "model/history.csv")
    for number in (0, 1):
        logged = client.get_metric_history(run.info.run_id, f"member_{number}/curves/train_loss")
        assert [metric.value for metric in logged] == pytest.approx(rows[rows["member"] == number]["train_loss"])


def test_folds_choose_on_the_graphs_that_they_hold_out(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[int, set[str]] = {}
    ranked: dict[int, set[str]] = {}
    draw, validate = StepData.step, RankingModule.validation_step

    def step(self: StepData, epoch: int, index: int) -> Step:
        drawn = draw(self, epoch, index)
        trained.setdefault(self.seed, set()).add(drawn.graph.features.name)
        return drawn

    def validation_step(self: RankingModule, batch: Any, index: int) -> None:
        ranked.setdefault(self.seed, set()).add(batch.graph.features.name)
        validate(self, batch, index)

    monkeypatch.setattr(StepData, "step", step)
    monkeypatch.setattr(RankingModule, "validation_step", validation_step)
    train(settings(trainer__workers=0), tmp_path / "alone")
    names, valid = trained.pop(0), ranked.pop(0)
    assert not names & valid
    # Names of generated graphs name no family, so that each graph is one of its own.
    train(settings(ensemble__folds=3, trainer__workers=0), tmp_path / "model")
    assert len(trained) == 3
    for seed, own in trained.items():
        assert own | ranked[seed] == names
        assert not own & ranked[seed]
        assert len(ranked[seed]) == 1
