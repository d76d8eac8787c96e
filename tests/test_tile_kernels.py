"""The official tile kernels from raw protobuf to metrics, as the benchmark runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_each_kernel_is_ranked_by_a_model_of_the_others(shared_data: Path, tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[1] / "benchmarks" / "tile_kernels.py"
    # Lightning warns with a category of its own, a UserWarning.
    command = [
        sys.executable,
        "-W",
        "error::UserWarning",
        str(benchmark),
        "--quick",
        "--json",
        str(tmp_path / "f.json"),
    ]
    subprocess.run(command, check=True)
    figures = json.loads((tmp_path / "f.json").read_text())
    kernels = figures["kernels"]
    assert {name: (one["configurations"], one["distinct"]) for name, one in kernels.items()} == {
        "-3006cd0d02fa72c4": (3, 3),
        "-3545610a073feea6": (23, 22),
        "-426e30b3297100f1": (2, 2),
        "-69259acddcd0d88": (2, 1),
    }
    assert "kendall_tau" not in kernels["-69259acddcd0d88"]
    assert kernels["-3545610a073feea6"]["slowdown_1"] < kernels["-3545610a073feea6"]["random_slowdown_1"]
    assert figures["means"]["all rankable"]["kernels"] == 3
