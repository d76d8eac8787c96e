"""The benchmark of the methods' quality: resumable, with the figures and plots of all seven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hlorank.training.methods import METHODS

WORKLOAD = "synthetic-random-11"
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "methods.py"


def run(results: Path, *options: str) -> str:
    command = [sys.executable, str(BENCHMARK), "--quick", "--workload", WORKLOAD, "--results", str(results)]
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_all_methods_are_measured_once_and_drawn(tmp_path: Path) -> None:
    tables = [name for name, method in METHODS.items() if method.others == "table"]
    expected = {(name, "") for name in METHODS} | {(name, "reweight") for name in tables}
    expected |= {(name, "half sampled") for name in ("gst_e", "gst_ef")}
    tuned = len([method for method in METHODS.values() if not method.finetune_head])
    assert run(tmp_path).count("CPU s\n") == len(expected) + tuned
    first = (tmp_path / f"{WORKLOAD}.json").read_bytes()
    runs = {(one["method"], one["variant"]): one for one in json.loads(first)["runs"] if one["seed"] == 0}
    assert set(runs) == expected
    for (method, variant), one in runs.items():
        assert (one["hit_rate"] is not None) == (METHODS[method].others == "table")
        assert one["steps"] == one["curve"][-1][0] > 0
        if METHODS[method].finetune_head:
            assert one["curve"] == runs[method.removesuffix("f"), variant]["curve"]
        else:
            assert one["valid_tau"] == max(tau for _, _, tau, _ in one["curve"])
    assert runs["gst_e", ""]["hit_rate"] > 0
    memory = {method: runs[method, ""]["step_memory_bytes"] for method in METHODS}
    assert memory["gst"] == memory["gst_one"] < memory["full"]

    assert "CPU s\n" not in run(tmp_path)
    assert (tmp_path / f"{WORKLOAD}.json").read_bytes() == first

    drawn = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        run(tmp_path, "--plots", str(folder))
        drawn.append((folder / f"methods-{WORKLOAD}.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert b">gst_e, reweight (1)<" in drawn[0]
