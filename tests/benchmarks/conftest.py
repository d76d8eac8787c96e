"""Commands of benchmarks."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Outcome:
    """Exit status of a command and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the benchmarks, which import each other; they set variables that are set already."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name, value in {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    return BENCHMARKS


@pytest.fixture
def run(
    benchmarks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Return a function that runs a benchmark in this process."""

    def call(name: str, *arguments: object) -> Outcome:
        path = str(benchmarks / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        status = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else -1
        return Outcome(status, *capsys.readouterr())

    return call
