from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_at_least_twenty_thousand_nodes_a_second(tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "hlo.py"
    figures = tmp_path / "figures.json"
    subprocess.run([sys.executable, str(benchmark), "--quick", "--json", str(figures)], check=True)
    results = json.loads(figures.read_text())
    assert results
    assert all(one["nodes_per_second"] > 20_000 for one in results.values())
