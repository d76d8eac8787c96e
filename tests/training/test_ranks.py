"""Trainings by several ranks: the steps of one, their mistakes, and their checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.entities import Run
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.models.cost_model import CostModel
from hlorank.training.trainer import train
from tests.training.ranks_helpers import train_with
from tests.training.training_helpers import DROPOUT, WEIGHTS

Settings = Callable[..., Config]
Runs = Callable[[Config], list[Run]]
History = Callable[[Path], list[dict[str, str]]]

TWENTY_STEPS = {"trainer__graphs_per_step": 4, "trainer__steps_per_epoch": 5, "trainer__max_epochs": 4}


def difference(folder: Path, other: Path) -> float:
    """Return the largest relative difference between the weights of two models, tensor by tensor."""
    first, second = (load_file(path / WEIGHTS) for path in (folder, other))
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).norm() / first[name].norm().clamp(min=1e-30)) for name in first)


@pytest.fixture
def double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float64: AdamW enlarges the rounding of float32, by which sums of gradients differ in their order."""
    plain_open = FeatureStore.open

    def opened(self: FeatureStore, split: Any, name: str) -> GraphFeatures:
        features = plain_open(self, split, name)
        return replace(features, node_feat=features.node_feat.astype(np.float64))

    monkeypatch.setattr(FeatureStore, "open", opened)
    monkeypatch.setattr("hlorank.training.trainer.CostModel", lambda *values: CostModel(*values).double())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize("method", ["full", "gst", "gst_efd"])
def test_two_ranks_take_the_steps_of_one(
    method: str, double_precision: None, settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    """Each computes half the graphs of a step."""
    config = settings(**TWENTY_STEPS, **DROPOUT, method=method, trainer__patience=9)
    best = train(config, tmp_path / "one")
    assert train_with(2, config, tmp_path / "two") == [pytest.approx(best, rel=1e-6), None]
    print(method, difference(tmp_path / "one", tmp_path / "two"))
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-6
