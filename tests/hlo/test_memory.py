"""Memory of reading a file with many modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_memory_is_that_of_one_module(tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "hlo.py"
    figures = tmp_path / "figures.json"
    subprocess.run([sys.executable, str(benchmark), "--quick", "--json", str(figures)], check=True)
    memory = json.loads(figures.read_text())["memory"]
    assert memory["by_modules_in_a_file"]["100"] < 2 * memory["by_modules_in_a_file"]["1"]
    assert memory["by_nodes"]["8000"] < 16 * memory["by_nodes"]["500"]
