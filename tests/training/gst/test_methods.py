"""The table of methods."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from hlorank.training.gst.methods import METHODS


def test_methods_are_data() -> None:
    assert METHODS["full"].whole_graph
    assert not METHODS["gst"].whole_graph
    with pytest.raises(FrozenInstanceError):
        METHODS["gst"].whole_graph = True  # type: ignore[misc] # as above
