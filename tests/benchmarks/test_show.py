"""`--show` of the benchmarks that keep the rows of trainings."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Outcome

Run = Callable[..., Outcome]


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def _cells(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_rows_of_quality_are_only_read(run: Run, tmp_path: Path) -> None:
    rows = [
        ("tile/cpu", "best_tile", 0, "old", 1.0, 0.1),
        ("tile/cpu", "random", 0, "a", 0.0, 0.0),
        ("tile/cpu", "best_tile", 1, "b", 3.0, 0.5),
        ("tile/cpu", "best_tile", 2, "c", 9.0, 0.9),
        ("tile/cpu", "best_tile", 0, "new", 1.0, 0.25),
        ("layout/cpu/random", "best_layout", 0, "d", 1.0, 0.2),
    ]
    columns = ("collection", "experiment", "seed", "fingerprint", "cpu_seconds", "valid/kendall_tau")
    _write(results := tmp_path / "results.csv", columns, rows)
    options = ("--show", "--results", results, "--work", tmp_path / "work")
    shown = run("quality", "--collection", "tile:cpu", "--seeds", 2, *options)
    assert shown.status == 0
    assert [row[:5] for row in _cells(shown.out)] == [
        ["tile/cpu", "best_tile", "2", "2.000 ± 1.414", "0.375 ± 0.177"],
        ["tile/cpu", "random", "1", "0.000", "0.000"],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]
    missing = run("quality", "--collection", "tile/cpu", "--experiment", "kaggle_1_tile", *options)
    assert (missing.status, missing.out) == (2, "")


def test_rows_of_real_are_only_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORANK_SHARED", str(tmp_path / "none"))
    figures = ("train/kendall_tau", "test/kendall_tau", "test/opa", "test/slowdown_1", "test/slowdown_5")
    columns = ("collection", "experiment", "seed", "graph", "cpu_seconds", *figures)
    taus = {"a": (0.75, 0.25), "b": (0.5,)}
    rows = [("tile/xla", "best_tile", 0, graph, 2.0, 0.0, tau, 0, 0, 0) for graph in taus for tau in taus[graph]]
    _write(results := tmp_path / "results.csv", columns, rows)
    shown = run("real", "--show", "--results", results, "--work", tmp_path / "work")
    assert shown.status == 0
    assert [row[:6] for row in _cells(shown.out)] == [["tile/xla", "best_tile", "1", "2.000", "0.000", "0.375"]]
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]
