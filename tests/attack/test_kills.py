"""The attack by kills of benchmarks/attack_kills.py, on a pipeline of one small training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.slow
def test_a_killed_pipeline_ends_with_the_same_bytes(attacked: Callable[[str], Any]) -> None:
    row = attacked("attack_kills")["kills"]
    assert row["attacked"] >= 4  # two kills, a full disk, and the last call
    assert row["accepted"]
