"""Commands of attacks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = dict[str, dict[str, Any]]


@pytest.fixture
def attacked(tmp_path: Path) -> Callable[[str], Rows]:
    """Return a function that runs the quick form of an attack, checks its findings, and returns its counts."""

    def run(name: str) -> Rows:
        script = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
        # A process of its own: the memory of its children is measured.
        command = [sys.executable, str(script), "--quick", "--json", str(tmp_path / "counts.json")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        rows: Rows = json.loads((tmp_path / "counts.json").read_text())
        assert all(row["findings"] == [] for row in rows.values())
        return rows

    return run
