"""The attack of benchmarks/attack_server.py on `hlorank serve`, with part of its kinds of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.slow
def test_hostile_requests(attacked: Callable[[str], Any]) -> None:
    rows = attacked("attack_server")
    assert rows["hostile requests"]["attacked"] >= 125  # of at least 120 kinds: five have the name of another
    assert rows["hostile requests"]["clean errors"] > 90
    assert rows["correct requests"]["accepted"] == rows["correct requests"]["attacked"] == 400
