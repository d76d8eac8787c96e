"""Fixtures that open the tiny collections as training does, and read the outputs of a training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore


@pytest.fixture
def without_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no graph to validate on."""
    plain = FeatureStore.trainable
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: plain(self, split) if split == "train" else [])


@pytest.fixture(scope="module")
def trained(
    settings_in: Callable[[Path], Callable[..., Config]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Train settings once for all tests of a module, to compare other trainings with, and return the model's folder."""
    from hlorank.stages.train import train

    root, made = tmp_path_factory.mktemp("trained"), dict[str, Path]()
    settings = settings_in(root)

    def make(**values: Any) -> Path:
        key = str(sorted(values.items()))
        if key not in made:
            train(settings(**values), root / str(len(made)))
            made[key] = root / str(len(made))
        return made[key]

    return make
