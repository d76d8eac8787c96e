"""Fixtures of sweeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mlflow.tracking import MlflowClient

from hlorank.config import Config


@pytest.fixture
def config(settings: Callable[..., Config]) -> Config:
    return settings()


@pytest.fixture
def client(config: Config) -> MlflowClient:
    return MlflowClient(config.tracking.uri)
