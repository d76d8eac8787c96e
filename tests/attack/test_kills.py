"""The attack by kills of benchmarks/attack_kills.py, on a pipeline of one small training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_killed_pipeline_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import attack_kills  # type: ignore[import-not-found] # a script

    counts = attack_kills.attack(tmp_path, kills=3, database_kills=1, disks=1, small=True, seed=0)
    assert counts.passed, counts.notes
    assert counts.accepted == 1
