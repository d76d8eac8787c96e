"""The benchmark of the methods' quality: all methods, in a form of minutes that can be repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hlorank.training.methods import METHODS

WORKLOAD = "synthetic-random-11"
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "methods.py"


@pytest.mark.slow
def test_all_methods_are_measured_once_and_drawn(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--workload", WORKLOAD, "--work", str(tmp_path / "work")]
    command += ["--results", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "plot.svg")]
    subprocess.run(command, check=True, capture_output=True)
    first, plot = (tmp_path / "rows.csv").read_bytes(), (tmp_path / "plot.svg").read_bytes()
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert set(rows["method"]) == set(METHODS)
    assert (rows["steps"] > 0).all()
    assert rows[["valid_tau", "test_tau", "train_tau"]].abs().le(1).all(axis=None)
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "rows.csv").read_bytes() == first
    assert (tmp_path / "plot.svg").read_bytes() == plot
