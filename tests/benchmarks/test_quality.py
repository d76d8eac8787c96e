"""Cross-validation over families: its folds, the comparison of pairs, the networks that leave, and kept results."""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlorank.data.splits import SplitFile
from hlorank.files import read_json
from tests.benchmarks.conftest import BENCHMARKS, Outcome

sys.path.append(str(BENCHMARKS))
import comparison  # type: ignore[import-not-found] # of the folder of the benchmarks
import quality  # type: ignore[import-not-found] # as above
from cells import CELL, COLUMNS, GRAPH_COLUMNS, Wanted, graphs_file  # type: ignore[import-not-found] # as above
from folds import folds_of  # type: ignore[import-not-found] # as above

Run = Callable[..., Outcome]
BUNDLED = ["layout/cpu/random", "layout/cpu/default", "layout/cpu/models", "layout/joined/random", "tile/cpu"]


@pytest.mark.parametrize("collection", BUNDLED)
def test_each_family_is_left_out_once(collection: str, tmp_path: Path) -> None:
    folds = folds_of(collection, tmp_path)
    assert [fold.number for fold in folds] == list(range(5))
    left_out: Counter[str] = Counter()
    for fold, before in zip(folds, [folds[-1], *folds], strict=False):
        families = {
            split: {fold.families[graph] for graph, of in fold.splits.items() if of == split}
            for split in ("train", "valid", "test")
        }
        assert not families["test"] & (families["train"] | families["valid"])
        assert not families["valid"] & families["train"]
        assert families["valid"] == {fold.families[graph] for graph, of in before.splits.items() if of == "test"}
        left_out.update(families["test"])
        assert fold.data(tmp_path) == fold.data(tmp_path)
        content = SplitFile(**read_json(tmp_path / collection / f"fold-{fold.number}.json"))
        ((graphs),) = content.collections.values()
        assert {graph for graph, number in graphs.items() if number == 1} == {
            graph for graph, of in fold.splits.items() if of == "test"
        }
    assert set(left_out.values()) == {1}
    assert set(left_out) == set(folds[0].families.values())


def taus(values: dict[str, float]) -> dict[comparison.Graph, float]:
    return {("tile/cpu", graph): value for graph, value in values.items()}


FAMILIES = {("tile/cpu", f"{family}{number}"): family for family in "abcdef" for number in range(3)}


def test_a_difference_in_every_family_is_ahead() -> None:
    rng = np.random.default_rng(0)
    base = {graph: rng.uniform() for graph in FAMILIES}
    better = {graph: tau + 0.05 + rng.normal(0, 0.01) for graph, tau in base.items()}
    noisy = {graph: tau + (0.1 if FAMILIES[graph] in "abc" else -0.1) for graph, tau in base.items()}
    pairs = comparison.compare({"base": base, "better": better, "noisy": noisy}, FAMILIES)
    assert len(pairs) == 6
    assert (pairs["better", "base"].verdict, pairs["base", "better"].verdict) == ("ahead", "behind")
    assert pairs["noisy", "base"].verdict == "level"
    assert pairs["better", "base"].mean == pytest.approx(0.05, abs=0.01)
    assert pairs["base", "better"] == pairs["better", "base"].reversed()
    assert comparison.compare({"base": base, "better": better, "noisy": noisy}, FAMILIES) == pairs
    table = comparison.verdicts(["better", "base"], pairs)
    assert "| better |  | ahead +0.0" in table
    assert "| base | behind -0.0" in table


def test_a_difference_in_one_family_is_level() -> None:
    """Graphs of a family are alike: many of them are not many observations."""
    family = {("tile/cpu", f"{name}{number}"): name for name in "ab" for number in range(100)}
    base = dict.fromkeys(family, 0.5)
    better = {graph: 0.5 + 0.1 * (name == "a") for graph, name in family.items()}
    pair = comparison.difference(better, base, family)
    assert pair is not None
    assert (pair.mean, pair.low, pair.high) == pytest.approx((0.05, 0, 0.1))
    assert pair.verdict == "level"


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12))
def test_an_interval_has_the_mean_of_every_graph(differences: list[float]) -> None:
    family = {("tile/cpu", str(number)): str(number) for number in range(len(differences))}
    pair = comparison.difference(dict(zip(family, differences, strict=True)), dict.fromkeys(family, 0.0), family)
    assert pair is not None
    assert pair.mean == pytest.approx(np.mean(differences))
    assert pair.low - 1e-9 <= pair.mean <= pair.high + 1e-9


def test_collections_count_alike() -> None:
    first = {("a", "x"): 0.5, ("a", "y"): 0.5, ("a", "z"): 0.5, ("b", "x"): 0.1}
    pair = comparison.difference(first, dict.fromkeys(first, 0.0), {graph: graph[1] for graph in first})
    assert pair is not None
    assert pair.mean == pytest.approx(0.3)
    assert comparison.difference(first, {}, {}) is None


def test_networks_far_from_the_front_leave() -> None:
    valid = {
        "kaggle_1": 0.5,
        "kaggle_2": 0.56,
        "best_layout": 0.3,
        "gradient_boosting": 0.6,
        "xgboost": 0.2,
        "random": 0.0,
    }
    assert quality.staying(valid) == ["kaggle_2", "best_layout", "gradient_boosting", "xgboost", "random"]
    many = {f"network {number}": 0.6 - 0.001 * number for number in range(9)}
    assert quality.staying(many) == [*many][: quality.STAYING]


def test_the_first_fold_decides_who_is_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[list[tuple[str, int, int]]] = []
    valid = {"kaggle_1_tile": 0.5, "kaggle_2_tile": 0.59, "gradient_boosting": 0.6, "best_tile": 0.1, "random": 0.0}

    class Computation:
        def __init__(self, *given: object) -> None: ...

        def rows(self, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
            calls.append([(one.experiment, one.fold.number, one.seed) for one in wanted])
            cells = ((one.fold.collection, one.experiment, one.fold.number, one.seed) for one in wanted)
            return [dict(zip(CELL, cell, strict=True)) | {"valid_tau": valid[cell[1]]} for cell in cells]

    monkeypatch.setattr(quality, "Computation", Computation)
    arguments = argparse.Namespace(
        collection=["tile/cpu"], experiment=[*valid], seeds=2, seed=None, fold=None, cpu_seconds=None, tried=[],
        ablation=False,
    )  # fmt: skip
    rows = quality.computed(arguments, tmp_path)
    assert calls[0] == [(name, 0, 0) for name in valid]
    assert {(fold, seed) for _, fold, seed in calls[1]} == {(fold, 0) for fold in range(1, 5)}
    assert {(fold, seed) for _, fold, seed in calls[2]} == {(fold, 1) for fold in range(5)}
    for continued in calls[1:]:
        assert {name for name, _, _ in continued} == valid.keys() - {"kaggle_1_tile"}
    cells = [(row["experiment"], row["fold"], row["seed"]) for row in rows]
    assert cells == [cell for call in calls for cell in call]
    assert len(set(cells)) == len(cells) == 4 * 5 * 2 + 1
    arguments.fold = 3
    quality.computed(arguments, tmp_path)
    assert {(fold, seed) for _, fold, seed in calls[3]} == {(3, 0), (3, 1)}


def test_tries_are_scored_on_valid_next_to_the_experiment() -> None:
    given = {"experiment": ["best_tile"], "cpu_seconds": None, "tried": [["loss=hinge", "seed=1"]], "ablation": False}
    arguments = argparse.Namespace(**given)
    tried = quality.chosen(arguments, "tile/cpu")
    assert [*tried] == ["best_tile", "best_tile loss=hinge seed=1"]
    assert tried["best_tile loss=hinge seed=1"] == (*tried["best_tile"], "loss=hinge", "seed=1")
    assert quality.scored(arguments) == "valid"
    arguments.tried = []
    assert quality.scored(arguments) == "test"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of three experiments on tiles, one of which left after its first fold."""
    cells, graphs = [], []
    better = {"gradient_boosting": 0.3, "best_tile": 0.25, "kaggle_2_tile": 0.0}
    for experiment, tau in better.items():
        for fold in range(1 if experiment == "kaggle_2_tile" else 5):
            for seed in range(2):
                key = f"{experiment}-{fold}-{seed}"
                cell = ["tile/cpu", experiment, fold, seed]
                cells.append([*cell, "test", f"old {key}", 1, 1, 99, 0.9, ""])
                cells.append([*cell, "test", key, 1, 1, 20.0, 0.5, "baseline.leaves=4"])
                cells.append([*cell, "valid", f"tried {key}", 1, 1, 20.0, 0.5, ""])
                graphs += [[key, f"g{fold}", f"f{fold}", tau + 0.1 * fold + 0.02 * seed, 0.5, 0.1, 0.05, 0.98]]
                graphs += [[key, f"equal{fold}", f"f{fold}", "", "", "", "", ""]]
    cells.append(
        ["tile/cpu", "gradient_boosting", 0, 2, "test", "gradient_boosting-0-0", 1, 1, 99, 0.9, ""]
    )  # a seed with one of five folds
    path = tmp_path / "folds.csv"
    for file, columns, rows in ((path, COLUMNS, cells), (graphs_file(path), GRAPH_COLUMNS, graphs)):
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([columns, *rows])
    return path


def test_a_model_of_joined_collections_has_a_row_in_the_table_of_each(tmp_path: Path, run: Run) -> None:
    path, cells, graphs = tmp_path / "folds.csv", [], []
    places = {"layout/joined/random": (0.6, 0.5, 0.8), "layout/cpu/default": (0.4,), "layout/cpu/models": (0.7,)}
    for place, taus_of in places.items():
        parts = BUNDLED[:3] if len(taus_of) > 1 else [place]
        for fold in range(5):
            key = f"{place} {fold}"
            cells.append([place, "best_layout", fold, 0, "test", key, 1, 1, 20.0, 0.5, ""])
            for part, tau in zip(parts, taus_of, strict=True):
                name = f"g{fold}" if part == place else f"{part.replace('/', '.')}.g{fold}"
                graphs.append([key, name, f"f{fold}", tau, 0.5, 0.1, 0.05, 0.98])
    for file, columns, rows in ((path, COLUMNS, cells), (graphs_file(path), GRAPH_COLUMNS, graphs)):
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([columns, *rows])
    shown = run("quality", "--collection", *places, "--show", "--results", path)
    assert shown.status == 0, shown.err
    for text in (
        "| best_layout | 5 of 5 | 1 | 0.400 |",
        "| best_layout, joined | 5 of 5 | 1 | 0.500 |",
        "| best_layout, joined |  | ahead +0.100 (+0.100 to +0.100) |",
        "| best_layout, joined | 5 of 5 | 1 | 0.800 |",
        "mean of 3 collections of layouts",
        "- layout/cpu/default: 2 on 0, 2 on 1",
    ):
        assert text in shown.out
    assert "| layout/joined/random" not in shown.out


def test_tables_of_kept_results(results: Path, run: Run, tmp_path: Path) -> None:
    options = ("--collection", "tile:cpu", "--show", "--results", results, "--plot", tmp_path / "plot.svg")
    shown = run("quality", *options, "--work", tmp_path / "work")
    assert shown.status == 0, shown.err
    assert "| gradient_boosting | 5 of 5 | 2 | 0.510 ± 0.014 | 10.0 | 5.0 | 0.500 | 20 |" in shown.out
    assert "| kaggle_2_tile | 1 of 5 | 2 | 0.010 ± 0.014 |" in shown.out
    assert "| gradient_boosting |  | ahead +0.050 (+0.050 to +0.050) |" in shown.out
    assert "| best_tile | behind -0.050" in shown.out
    assert "Noise ceiling: 0.980" in shown.out
    assert "- tile/cpu: 13 on 0, 8 on 1, 8 on 2, 8 on 3, 8 on 4" in shown.out
    plot = (tmp_path / "plot.svg").read_text()
    assert "ahead" in plot
    assert "behind" in plot
    assert not (tmp_path / "work").exists()
    again = run("quality", *options, "--work", tmp_path / "work")
    assert again.out == shown.out
    assert (tmp_path / "plot.svg").read_text() == plot


def test_one_seed_of_one_fold(results: Path, run: Run) -> None:
    options = ("--collection", "tile/cpu", "--show", "--results", results)
    shown = run("quality", *options, "--experiment", "best_tile", "--fold", 2, "--seed", 1)
    assert "| best_tile | 1 of 1 | 1 | 0.470 |" in shown.out
    missing = run("quality", *options, "--experiment", "kaggle_1_tile")
    assert (missing.status, missing.out) == (2, "")


@pytest.mark.slow
def test_a_finished_cell_is_kept(run: Run, tmp_path: Path) -> None:
    options: list[Any] = ["--collection", "tile/cpu", "--experiment", "random", "--fold", 3, "--seeds", 1, "--jobs", 1]
    options += ["--results", tmp_path / "folds.csv", "--work", tmp_path / "work"]
    first = run("quality", *options)
    assert first.status == 0, first.err
    assert "tile/cpu random 3 0: valid" in first.err
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.csv")}
    assert len(kept) == 2
    second = run("quality", *options)
    assert (second.out, second.err) == (first.out, "")
    assert {path: path.read_bytes() for path in tmp_path.glob("*.csv")} == kept
