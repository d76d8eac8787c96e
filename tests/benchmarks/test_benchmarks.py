"""Benchmarks: the folds, comparison and kept results of the cross-validation."""

import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hlorank.data.collection import read_graph
from hlorank.data.splits import SplitFile
from hlorank.files import read_json, write_json

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import comparison
import folds as folds_module
import harness
import quality
from folds import folds_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BUNDLED = ["layout/cpu/random", "layout/cpu/default", "layout/cpu/models", "layout/joined/random", "tile/cpu"]
BUNDLED += ["layout/tpu-v3/outputs", "layout/tpu-v3/models"]


@dataclass(frozen=True)
class Outcome:
    """Exit status of a command and what it printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a benchmark in this process; benchmarks set variables that are set already."""
    for name, value in {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}.items():
        monkeypatch.setenv(name, value)

    def call(name: str, *arguments: object) -> Outcome:
        path = str(BENCHMARKS / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        status = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else -1
        return Outcome(status, *capsys.readouterr())

    return call


def test_help(run: Run) -> None:
    for path in BENCHMARKS.glob("*.py"):
        if "__main__" in path.read_text():
            assert run(path.stem, "--help").status == 0, path


@pytest.mark.parametrize("collection", BUNDLED)
def test_each_family_is_left_out_once(collection: str, tmp_path: Path) -> None:
    folds = folds_of(collection, tmp_path)
    assert [fold.number for fold in folds] == list(range(5))
    left_out: list[str] = []
    for fold, before in zip(folds, [folds[-1], *folds], strict=False):
        families = {
            split: {fold.families[graph] for graph, of in fold.splits.items() if of == split}
            for split in ("train", "valid", "test")
        }
        assert not families["test"] & (families["train"] | families["valid"])
        assert not families["valid"] & families["train"]
        assert families["valid"] == {fold.families[graph] for graph, of in before.splits.items() if of == "test"}
        left_out += families["test"]
        fold.data(tmp_path)
        (graphs,) = SplitFile(
            **read_json(next((tmp_path / collection).glob(f"fold-{fold.number}-*")))
        ).collections.values()
        tested = {graph for graph, of in fold.splits.items() if of == "test"}
        assert {graph for graph, number in graphs.items() if number == 1} == tested
    assert sorted(left_out) == sorted({*folds[0].families.values()})


FAMILIES = {("tile/cpu", f"{family}{number}"): family for family in "abcdef" for number in range(3)}


def test_a_difference_in_every_family_is_ahead_and_in_one_is_level() -> None:
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
    family = {("tile/cpu", f"{name}{number}"): name for name in "ab" for number in range(100)}
    one = comparison.difference(
        {graph: 0.5 + 0.1 * (name == "a") for graph, name in family.items()}, dict.fromkeys(family, 0.5), family
    )
    assert one is not None
    assert (one.mean, one.low, one.high) == pytest.approx((0.05, 0, 0.1))
    assert one.verdict == "level"  # graphs of a family are alike: many of them are not many observations


def write(path: Path, cells: list[list[Any]], graphs: list[list[Any]]) -> Path:
    """Write results of cells, and of the graphs of each."""
    pd.DataFrame(cells, columns=quality.COLUMNS).to_csv(path, index=False)
    pd.DataFrame(graphs, columns=quality.GRAPH_COLUMNS).to_csv(quality.graphs_file(path), index=False)
    return path


def test_tables_of_kept_results(run: Run, tmp_path: Path) -> None:
    cells, graphs = [], []
    for experiment, tau in {"xgboost": 0.3, "best_tile": 0.25, "kaggle_2_tile": 0.0}.items():
        for fold in range(1 if experiment == "kaggle_2_tile" else 5):
            for seed in range(2):
                key, cell = f"{experiment}-{fold}-{seed}", ["tile/cpu", experiment, fold, seed]
                cells.append([*cell, "test", f"old {key}", 1, 1, 99, 0.9, "", None])
                cells.append([*cell, "test", key, 1, 1, 20.0, 0.5, "baseline.leaves=4", 40.0])
                cells.append([*cell, "valid", f"tried {key}", 1, 1, 20.0, 0.5, "", 40.0])
                graphs += [
                    [key, f"g{fold}", f"f{fold}", tau + 0.1 * fold + 0.02 * seed, 0.5, 0.1, 0.05, 0.01, 0.98, 0.4]
                ]
                graphs += [[key, f"equal{fold}", f"f{fold}", *[None] * 7]]
    cells.append(["tile/cpu", "xgboost", 0, 2, "test", "xgboost-0-0", 1, 1, 99, 0.9, "", None])  # one of five folds
    options = ("--collection", "tile:cpu", "--show", "--results", write(tmp_path / "folds.csv", cells, graphs))
    shown = run("quality", *options, "--plot", tmp_path / "plot.svg", "--work", tmp_path / "work")
    assert shown.status == 0, shown.err
    for text in (
        "| xgboost | 5 of 5 | 2 | 0.510 ± 0.014 | 0.400 | 10.0 | 5.0 | 1.0 | 0.500 | 20 |",
        "| kaggle_2_tile | 1 of 5 | 2 | 0.010 ± 0.014 |",
        "| xgboost |  | ahead +0.050 (+0.050 to +0.050) |",
        "Noise ceiling: 0.980",
        "- tile/cpu: 13 on 0, 8 on 1, 8 on 2, 8 on 3, 8 on 4",
    ):
        assert text in shown.out
    assert "ahead" in (tmp_path / "plot.svg").read_text()
    assert not (tmp_path / "work").exists()
    one = run("quality", *options, "--experiment", "best_tile", "--fold", 2, "--seed", 1)
    assert "| best_tile | 1 of 1 | 1 | 0.470 |" in one.out


def test_marks_of_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path("data/sample/layout/tpu-v3/outputs")
    (tmp_path / place).mkdir(parents=True)
    for number, file in enumerate(sorted((BENCHMARKS.parent / place).glob("*.npz"))[:2]):
        shutil.copy(file, tmp_path / place)
        runtime = read_graph(file, "layout").measurements.runtime.tolist()
        parts = {"padded": runtime, "copies": [-time for time in runtime] if number else runtime}
        write_json(tmp_path / place / f"{file.stem}.json", {"parts": parts})
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    assert quality.compiled("layout/tpu-v3/outputs") == {"padded": pytest.approx(1), "copies": pytest.approx(0)}
    assert quality.compiled("layout/cpu/random") == {}


def test_networks_go_on_from_estimates_with_few_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, collection = tmp_path / "data/sample", "layout/tpu-v5e/outputs"
    for source in ("tpu-v3", "tpu-v5e"):  # the same graphs
        (sample / "layout" / source).mkdir(parents=True)
        (sample / "layout" / source / "outputs").symlink_to(BENCHMARKS.parent / "data/sample/layout/tpu-v3/outputs")
    shutil.copy(BENCHMARKS.parent / "data/sample/split.json", sample)
    monkeypatch.setattr(folds_module, "ROOT", tmp_path)
    assert folds_module.available("layout/tpu-v3/models")
    assert not folds_module.available("layout/tpu-v3/default")
    starts, folds = folds_of(f"{collection}@0", tmp_path), folds_of(f"{collection}@8", tmp_path)
    for start, fold in zip(starts, folds, strict=True):
        assert fold.start is not None
        assert fold.start.splits == start.splits == start.of_networks.splits
        tested = {start.families[graph] for graph, of in start.splits.items() if of == "test"}
        assert not tested & {fold.families[graph] for graph, of in fold.splits.items() if of != "test"}
        assert {of for graph, of in start.splits.items() if graph.startswith("estimated.")} == {"train", "valid"}
        few = {graph for graph, of in fold.of_networks.splits.items() if of == "train"}
        assert (len(few), few) == (8, {*fold.further})
        assert fold.splits == start.splits | dict.fromkeys(few, "train")
        for one in (start, fold, fold.of_networks):  # fetch refuses a tree with graphs that no split has
            assert {path.stem for path in (one.root / collection).glob("*.npz")} == one.splits.keys()


def test_fewer_graphs_train_and_the_same_are_left_out(tmp_path: Path) -> None:
    name = "layout/tpu-v3/outputs"
    for whole, more, fewer in zip(*(folds_of(f"{name}{share}", tmp_path) for share in ("", "%30", "%10")), strict=True):
        train = [{graph for graph, of in fold.splits.items() if of == "train"} for fold in (whole, more, fewer)]
        assert train[2] < train[1] < train[0]
        assert [len(part) for part in train[1:]] == [round(len(train[0]) * share) for share in (0.3, 0.1)]
        assert more.splits == {graph: of for graph, of in whole.splits.items() if graph in train[1] or of != "train"}
        assert {path.stem for path in (fewer.root / name).glob("*.npz")} == fewer.splits.keys()


def test_networks_of_keras_are_ranked_by_models_of_other_programs(tmp_path: Path) -> None:
    (fold,) = folds_of("layout/keras/models", tmp_path)
    of = {
        split: {graph for graph, name in fold.splits.items() if name == split} for split in ("train", "valid", "test")
    }
    assert len(of["test"]) == 41
    assert {graph.partition(".")[0] for graph in of["test"]} == {"keras"}
    assert {graph.partition(".")[0] for graph in of["train"]} == {"random", "default", "models"}
    assert not {fold.families[graph] for graph in of["train"]} & {fold.families[graph] for graph in of["valid"]}
    assert {path.stem for path in (fold.root / fold.collection).glob("*.npz")} == fold.splits.keys()


@pytest.mark.slow
def test_a_finished_cell_is_kept(run: Run, tmp_path: Path) -> None:
    options: list[Any] = ["--collection", "tile/cpu", "--experiment", "random", "--fold", 3, "--seeds", 1, "--jobs", 1]
    options += ["--results", tmp_path / "folds.csv", "--work", tmp_path / "work"]
    first = run("quality", *options)
    assert first.status == 0, first.err
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.csv")}
    assert len(kept) == 2
    second = run("quality", *options)
    assert (second.out, second.err) == (first.out, "")
    assert {path: path.read_bytes() for path in tmp_path.glob("*.csv")} == kept
