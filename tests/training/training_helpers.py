"""Helpers of the tests that run whole trainings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch

from hlorank.config import Config, SegmentsConfig
from hlorank.models.cost_model import CostModel
from hlorank.training.fit import build
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner

WEIGHTS = "weights.safetensors"
DROPOUT = {"model__dropout": 0.2, "model__block": "[layer_norm,sage,gelu,dropout,residual]"}


class Interrupted(Exception):
    """Raised in place of a crash."""


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int | None) -> list[Any]:
    """Raise from a method instead of running it at one of its calls; return a list that grows by one with each call."""
    plain, calls = getattr(owner, name), list[Any]()

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(None)
        if len(calls) - 1 == call:
            monkeypatch.setattr(owner, name, plain)
            raise Interrupted
        return plain(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)
    return calls


def open_data(config: Config, held_out: Collection[str] = ()) -> StepData:
    """Return the steps and rankings that a training of the configuration has."""
    return build(open_setup(config), Member(config.seed, tuple(held_out)), ALONE)[1]


def planned(model: CostModel, method: str, step: Step, max_states: int | None = None) -> PlannedStep:
    """Return the step with the plans of a training of the method."""
    return StepPlanner.of(model, METHODS[method], max_states)(step)


def segments_config(**changes: Any) -> SegmentsConfig:
    """Return settings of methods; the table has room for all, and what it lacks is left out."""
    values = {"sampled": 1, "aggregation": "mean", "missing": "reweight", "keep_probability": 1.0}
    table = {"table_bytes": 10**6, "table_dtype": "float32", "configs_per_graph": None, "redraw_epochs": 1}
    return SegmentsConfig.model_validate({**values, **table, "finetune_epochs": 1, **changes})


def validate_with(monkeypatch: pytest.MonkeyPatch, taus: list[float]) -> dict[int, dict[str, torch.Tensor]]:
    """Make validation log these values, one in each epoch; return the weights that it is called with, by epoch."""
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def validation_step(self: RankingModule, *_: Any) -> None:
        seen[self.current_epoch] = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.log("curves/valid_kendall_tau", torch.tensor(taus[self.current_epoch]), on_epoch=True, batch_size=1)

    monkeypatch.setattr(RankingModule, "validation_step", validation_step)
    return seen
