"""`hlorank evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hlorank
from hlorank.cli.main import main
from tests.data.npz_files import Arrays, save

LAYOUT = "layout:synthetic:random"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def evaluator(tiny_collections: Path, tmp_path: Path) -> hlorank.Evaluator:
    return hlorank.Evaluator(LAYOUT, tiny_collections / "raw", "valid", tmp_path / "cache")


@pytest.fixture
def options(tiny_collections: Path, tmp_path: Path) -> list[str]:
    root, cache = str(tiny_collections / "raw"), str(tmp_path / "cache")
    return ["--collection", LAYOUT, "--root", root, "--split", "valid", "--cache", cache]


@pytest.fixture
def scores(evaluator: hlorank.Evaluator) -> Arrays:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=count) for name, count in evaluator.configurations.items()}


def test_json_and_the_table_have_the_result_of_the_evaluator(
    evaluator: hlorank.Evaluator, options: list[str], scores: Arrays, tmp_path: Path, capsys: Capture
) -> None:
    path, expected = tmp_path / "scores.csv", evaluator.eval(scores)
    rows = [f"{name},{row},{score!r}\n" for name, one in scores.items() for row, score in enumerate(one.tolist())]
    path.write_text("".join(["graph,configuration,score\n", *rows]))
    save(path.with_suffix(".npz"), scores)
    for form in (path, path.with_suffix(".npz")):
        assert main(["evaluate", str(form), *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == expected
    assert main(["evaluate", str(path), *options, "--wide"]) == 0
    out = capsys.readouterr().out
    for row in expected["per_graph"]:
        (line,) = [line for line in out.splitlines() if line.startswith(row["graph"])]
        assert f"{row['kendall_tau']:.3f}" in line
        assert f"{row['slowdown_5']:.2%}" in line
    assert f"{expected['kendall_tau']:.3f}" in out.splitlines()[-1]


def test_a_submission_of_rank_is_evaluated(
    options: list[str], model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "submission.csv"
    arguments = ["rank", "--model", str(model), *map(str, graphs), "--csv", str(path), "--json", "--compare"]
    assert main(arguments) == 0
    ranked = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(path), *options, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["per_graph"]
    assert [row["graph"] for row in rows] == [graph["graph"] for graph in ranked]
    for row, graph in zip(rows, ranked, strict=True):
        # Kendall tau may differ, as a ranking breaks the ties of equal configurations.
        assert [row[f"slowdown_{k}"] for k in (1, 5, 10)] == [graph["comparison"][f"slowdown_{k}"] for k in (1, 5, 10)]


def test_wrong_scores_and_a_missing_root_are_status_2(
    options: list[str], scores: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    name, values = scores.popitem()
    save(tmp_path / "few.npz", scores)
    save(tmp_path / "nan.npz", scores | {name: values * np.nan})
    for arguments, named in ((["few.npz", *options], name), (["nan.npz", *options], name), (["few.npz"], "--root")):
        assert main(["evaluate", "--collection", LAYOUT, *arguments]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert named in captured.err
