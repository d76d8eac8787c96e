"""The attack of benchmarks/attack_files.py on the readers of files, with a fiftieth of the mutated files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.slow
def test_damaged_and_malicious_files(attacked: Callable[[str], Any]) -> None:
    rows = attacked("attack_files")
    assert set(rows) == {"npz", "protobufs", "archives", "mirrors"}
    assert all(row["accepted"] and row["clean errors"] for row in rows.values())
    assert sum(row["attacked"] for row in rows.values()) > 450
