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
