"""The table of methods."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from hlorank.config import ConfigError
from hlorank.training.gst.methods import METHODS, method_named


def test_methods_are_data() -> None:
    assert METHODS["full"].whole_graph
    assert not METHODS["gst"].whole_graph
    assert method_named("gst") is METHODS["gst"]
    with pytest.raises(TypeError):
        METHODS["other"] = METHODS["gst"]  # type: ignore[index] # what the test is about
    with pytest.raises(FrozenInstanceError):
        METHODS["gst"].whole_graph = True  # type: ignore[misc] # as above


def test_unknown_methods_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"method: expected one of full, .*, gst_efd, gradient_boosting, .*, found 'ful'"
    ):
        method_named("ful")
