"""The attack of benchmarks/attack_files.py on the readers of files, with a fiftieth of the mutated files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_damaged_and_malicious_files(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks/attack_files.py"
    # A process of its own: the memory of its children is measured.
    command = [sys.executable, str(script), "--quick", "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "counts.json").read_text())
    assert set(rows) == {"npz", "protobufs", "archives", "mirrors"}
    assert all(row["findings"] == [] and row["accepted"] and row["clean errors"] for row in rows.values())
    assert sum(row["attacked"] for row in rows.values()) > 450
