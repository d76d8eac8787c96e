"""The benchmark of the methods' quality: resumable, with the figures and plots of all seven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hlorank.training.gst.methods import METHODS

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "methods.py"


def run(record: Path, *options: str) -> str:
    command = [sys.executable, str(BENCHMARK), "--quick", "--workload", "synthetic-random", "--json", str(record)]
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_all_methods_are_measured_once_and_drawn(tmp_path: Path) -> None:
    record = tmp_path / "methods.json"
    assert run(record).count("CPU s\n") == len(METHODS)
    first = record.read_bytes()
    summary = json.loads(first)["summary"]["synthetic-random"]
    assert list(summary) == sorted(METHODS)
    assert summary["full"]["full_over_cpu_seconds"] == 1
    assert summary["gst_e"]["hit_rate"] > 0

    curves = pd.read_csv(record.with_suffix(".csv")).set_index(["method", "step"])["valid_tau"]
    steps = {method: curves[method].index.tolist() for method in METHODS}
    assert steps == {method: [10, 20, 30] if METHODS[method].finetune_head else [10, 20] for method in METHODS}
    for method, finetuned in (("gst_e", "gst_ef"), ("gst_ed", "gst_efd")):
        assert curves[method].equals(curves[finetuned].iloc[:2])

    assert "CPU s\n" not in run(record)
    assert record.read_bytes() == first

    drawn = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        run(record, "--plots", str(folder))
        drawn.append((folder / "methods-synthetic-random.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert all(f">{method}<".encode() in drawn[0] for method in METHODS)
