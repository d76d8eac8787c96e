"""The tiny collections, as training opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hlorank.collection import Collection
from hlorank.config import Config
from hlorank.models.open import GraphOpener


@pytest.fixture
def open_graphs() -> Callable[..., GraphOpener]:
    """Opens the collection of a configuration, whole or cut into segments."""

    def make(config: Config, whole: bool = False) -> GraphOpener:
        path = Collection.parse(config.collection).path
        segments = None if whole else Path(config.paths.segments) / path
        return GraphOpener(Path(config.paths.features) / path, segments, torch.device("cpu"))

    return make
