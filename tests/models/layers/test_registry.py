"""Layers by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlorank.config import ConfigError
from hlorank.models.layers.layer import Layer


def test_an_unknown_name_is_an_error(make_layer: Callable[..., Layer]) -> None:
    with pytest.raises(ConfigError, match=r"model.block=sagee: .*sage"):
        make_layer("sagee")
