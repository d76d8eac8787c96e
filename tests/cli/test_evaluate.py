"""`hlorank evaluate`."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest

import hlorank
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations, order_fingerprint
from hlorank.files import write_json
from tests.cli.conftest import Command
from tests.data.npz_files import save

LAYOUT = "layout:synthetic:random"


@pytest.fixture
def options(tiny_collections: Path, tmp_path: Path) -> list[object]:
    root, cache = tiny_collections / "raw", tmp_path / "cache"
    return ["--collection", LAYOUT, "--root", root, "--split", "valid", "--cache", cache]


@pytest.fixture
def evaluator(tiny_collections: Path, tmp_path: Path) -> hlorank.Evaluator:
    return hlorank.Evaluator(LAYOUT, tiny_collections / "raw", "valid", tmp_path / "cache")


def test_json_and_the_table_have_the_result_of_the_evaluator(
    evaluator: hlorank.Evaluator, options: list[object], tmp_path: Path, call: Command
) -> None:
    rng = np.random.default_rng(1)
    scores = {name: rng.normal(size=count) for name, count in evaluator.configurations.items()}
    path, expected = tmp_path / "scores.csv", evaluator.eval(scores)
    rows = [f"{name},{row},{score!r}\n" for name, one in scores.items() for row, score in enumerate(one.tolist())]
    path.write_text("".join(["graph,configuration,score\n", *rows]))
    save(path.with_suffix(".npz"), scores)
    for form in (path, path.with_suffix(".npz")):
        assert call.json("evaluate", form, *options) == expected
    shown = call("evaluate", path, *options, "--wide")[0].splitlines()
    for row in expected["per_graph"]:
        (line,) = [line for line in shown if line.startswith(row["graph"])]
        assert f"{row['kendall_tau']:.3f}" in line
        assert f"{row['slowdown_5']:.2%}" in line
    assert f"{expected['kendall_tau']:.3f}" in shown[-1]


def test_a_submission(options: list[object], model: Path, graphs: list[Path], tmp_path: Path, call: Command) -> None:
    path = tmp_path / "submission.csv"
    ranked = call.json("rank", "--model", model, *graphs, "--csv", path, "--compare")
    rows = call.json("evaluate", path, *options)["per_graph"]
    assert [row["graph"] for row in rows] == [graph["graph"] for graph in ranked]
    for row, graph in zip(rows, ranked, strict=True):
        # Kendall tau may differ, as a ranking breaks the ties of equal configurations.
        assert [row[f"slowdown_{k}"] for k in (1, 5, 10)] == [graph["comparison"][f"slowdown_{k}"] for k in (1, 5, 10)]
    values = cast("LayoutConfigurations", read_graph(graphs[0], "layout").configurations).values()
    for order, status in ((order_fingerprint([values]), 0), (order_fingerprint([values[::-1]]), 2)):
        write_json(tmp_path / "submission.csv.orders.json", {f"{LAYOUT}:{graphs[0].stem}": order})
        assert (order in call("evaluate", path, *options, status=status)[1]) == bool(status)
