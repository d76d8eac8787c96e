"""The attack of benchmarks/attack_files.py on the readers of files, with a fiftieth of the mutated files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_damaged_and_malicious_files(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "attack_files.py"
    # A process of its own: the cases are forks of it, whose memory is measured.
    command = [sys.executable, str(script), "--quick", "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    results = json.loads((tmp_path / "counts.json").read_text())
    assert {name: row["findings"] for name, row in results.items()} == {name: [] for name in results}
    assert done.returncode == 0
    assert all(row["accepted"] and row["clean errors"] for row in results.values())
    assert sum(row["attacked"] for row in results.values()) > 450
