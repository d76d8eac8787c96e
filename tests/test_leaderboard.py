"""Rows of leaderboard/: their form, and that a cheap one follows from its command."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.evaluator import LEADERBOARD as COLUMNS
from hlorank.metrics import interval

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "leaderboard").glob("*.csv"))
REPEATED = ("layout.cpu.random", "layouts changed")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == [*COLUMNS]
        return [dict(zip(COLUMNS, row, strict=True)) for row in csv.reader(file)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_row_has_the_form(path: Path) -> None:
    found = rows(path)
    Collection.parse(path.stem.replace(".", "/"))
    assert len({(row["system"], row["split"]) for row in found}) == len(found) > 0
    for row in found:
        assert -1 <= float(row["low"]) <= float(row["tau"]) <= float(row["high"]) <= 1
        assert min(int(row["graphs"]), int(row["seeds"])) >= 1
        assert re.fullmatch(r"valid|test|\d+ folds", row["split"])
        assert re.fullmatch(r"[0-9a-f]{7,40}", row["commit"])
        assert row["data"]
        program, *arguments = row["command"].split()
        assert program in {"hlorank", "python"}
        assert program == "hlorank" or (ROOT / arguments[0]).is_file()


def test_rows_of_folds_are_those_of_the_kept_results() -> None:
    """Of which docs/explanation/models.md has the means."""
    cells, graphs = (pd.read_csv(ROOT / "benchmarks/results" / f"{name}.csv") for name in ("folds", "folds_graphs"))
    cells = cells[cells.split == "test"].drop_duplicates(["collection", "experiment", "fold", "seed"], keep="last")
    kept = cells.merge(graphs.dropna(subset="kendall_tau"), on="fingerprint")
    for name, row in ((path.stem, row) for path in FILES for row in rows(path) if row["split"].endswith("folds")):
        _, _, _, collection, _, experiment = row["command"].split()
        own = kept[(kept.collection == collection) & (kept.experiment == experiment)]
        own = own[own.graph.str.startswith(f"{name}.")] if "joined" in collection else own
        taus = own.groupby("graph").kendall_tau.mean()
        figures = [f"{value:.3f}" for value in (taus.mean(), *interval(taus.to_numpy()))]
        found = [*figures, str(len(taus)), str(own.seed.nunique()), f"{own.fold.nunique()} folds"]
        assert found == [row[column] for column in ("tau", "low", "high", "graphs", "seeds", "split")], row


def test_a_row_follows_from_its_command(tmp_path: Path) -> None:
    name, system = REPEATED
    (row,) = (one for one in rows(ROOT / f"leaderboard/{name}.csv") if one["system"] == system)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", row["command"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    made = dict(zip(COLUMNS, next(csv.reader([done.stdout])), strict=True))
    repeated = ("system", "split", "graphs", "tau", "low", "high", "seeds", "data")
    assert {key: made[key] for key in repeated} == {key: row[key] for key in repeated}
    assert row["command"].endswith(made["command"])
