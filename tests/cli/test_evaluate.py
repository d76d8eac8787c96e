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


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_json_is_the_result_of_the_evaluator(
    form: str,
    evaluator: hlorank.Evaluator,
    options: list[str],
    scores: Arrays,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / f"scores.{form}"
    if form == "npz":
        save(path, scores)
    else:
        rows = [f"{name},{row},{score!r}\n" for name, one in scores.items() for row, score in enumerate(one.tolist())]
        path.write_text("".join(["graph,configuration,score\n", *rows]))
    assert main(["evaluate", str(path), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == evaluator.eval(scores)


def test_the_table_has_a_row_for_each_graph_and_the_means(
    evaluator: hlorank.Evaluator,
    options: list[str],
    scores: Arrays,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path / "scores.npz", scores)
    assert main(["evaluate", str(tmp_path / "scores.npz"), *options, "--wide"]) == 0
    out, result = capsys.readouterr().out, evaluator.eval(scores)
    for row in result["per_graph"]:
        (line,) = [line for line in out.splitlines() if line.startswith(row["graph"])]
        assert f"{row['kendall_tau']:.3f}" in line
        assert f"{row['slowdown_5']:.2%}" in line
    assert f"{result['kendall_tau']:.3f}" in out.splitlines()[-1]


def test_a_submission_of_rank_is_evaluated(
    options: list[str], model: Path, graphs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_without_root_it_is_what_fetch_writes(
    evaluator: hlorank.Evaluator,
    scores: Arrays,
    tiny_collections: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path / "scores.npz", scores)
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", "scores.npz", "--collection", LAYOUT, "--split", "valid", "--cache", "cache"]
    assert main(arguments) == 2
    assert "--root" in capsys.readouterr().err
    (tmp_path / "data").mkdir()
    (tmp_path / "data/raw").symlink_to(tiny_collections / "raw")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == evaluator.eval(scores)


def test_wrong_scores_are_status_2(
    options: list[str], scores: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, values = scores.popitem()
    save(tmp_path / "scores.npz", scores)
    assert main(["evaluate", str(tmp_path / "scores.npz"), *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert name in captured.err
    save(tmp_path / "scores.npz", scores | {name: values * np.nan})
    assert main(["evaluate", str(tmp_path / "scores.npz"), *options]) == 2
    assert name in capsys.readouterr().err
