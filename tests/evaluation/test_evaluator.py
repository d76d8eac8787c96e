"""The public Evaluator: equal to the stage evaluate, and strict about what it is given."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection, Split
from hlorank.evaluation.evaluate import ModelScores, evaluate_collection
from hlorank.files import METRICS, DataError, read_json
from hlorank.metrics import noise_ceiling
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.scoring import load_trained
from tests.data.npz_files import layout_arrays, save, tile_arrays

Scores = dict[str, Any]

LAYOUT = "layout:synthetic:random"


@pytest.mark.parametrize("collection", [LAYOUT, "tile:synthetic"])
def test_metrics_are_those_of_the_stage_to_the_last_digit(
    collection: str,
    settings: Callable[..., Config],
    linear_model: Callable[..., Path],
    tiny_collections: Path,
    tmp_path: Path,
) -> None:
    config, address = settings(collection=collection), Collection.parse(collection)
    features, stage = tiny_collections / "features" / address.path, tmp_path / "report"
    graphs = GraphLoader(features, None)
    model = linear_model(collection, data=graphs.fingerprint)
    memory = config.evaluate.memory_bytes
    evaluate_collection(ModelScores(model, features, tmp_path, memory), address, config.evaluate, stage)
    trained = load_trained(model, memory, "cpu")
    splits: tuple[Split, ...] = ("valid", "test")
    for split in splits:
        opened = [graphs.store.open(split, name) for name in graphs.store.graphs(split)]
        scores = {graph.name: trained.score(graph, None)[graph.row_of] for graph in opened}
        result = hlorank.Evaluator(collection, tiny_collections / "raw", split, tmp_path / "cache").eval(scores)
        per_graph = result.pop("per_graph")
        assert result == {"collection": collection, "split": split, **read_json(stage / METRICS)[split]}
        assert result["graphs"] > 0
        with (stage / "per_graph.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["split"] == split]
        whole = [{key: "" if value is None else str(value) for key, value in row.items()} for row in per_graph]
        for row, found in zip(rows, whole, strict=True):
            assert int(found.pop("nodes")) >= int(row.pop("nodes"))  # those of the whole graph
            assert found == row


def test_metrics_are_those_of_a_graph(tmp_path: Path) -> None:
    folder = tmp_path / "layout" / "own" / "random" / "test"
    folder.mkdir(parents=True)
    save(folder / "a.npz", layout_arrays())
    (folder / "a.json").write_text('{"split_half_tau": 0.5}')
    save(folder / "withheld.npz", layout_arrays() | {"config_runtime": np.zeros(3, dtype=np.int64)})
    save(folder / "constant.npz", layout_arrays() | {"config_runtime": np.full(3, 7)})
    scores: Scores = {"a": [3.0, 2.0, 1.0], "withheld": [1, 2, 3], "constant": [1, 2, 3]}
    evaluator = hlorank.Evaluator("layout:own:random", tmp_path)
    result = evaluator.eval(scores)
    # Of runtimes 30, 10 and 20 two pairs are in order; a lower score is faster.
    expected = {"kendall_tau": 1 / 3, "opa": 2 / 3, "slowdown_1": 1.0, "noise_ceiling": noise_ceiling(0.5)}
    expected |= {"graphs": 1, "skipped": 1, "withheld": 1}
    assert {key: result[key] for key in expected} == pytest.approx(expected)
    notes = {row["graph"]: (row["kendall_tau"], row["note"]) for row in result["per_graph"]}
    assert notes["withheld"] == (None, "labels withheld")
    assert notes["constant"] == (None, "fewer than two distinct runtimes")
    json.dumps(result, allow_nan=False)
    shown = f"Kendall tau 0.333, noise ceiling {noise_ceiling(0.5):.3f}, slowdown@1 100.00%, @5 0.00%"
    assert str(result) == f"layout:own:random, mean of 1 graph of test: {shown}"
    (folder / "a.json").unlink()
    assert "repeat ceiling 1.000" in str(hlorank.Evaluator("layout:own:random", tmp_path).eval(scores))
    (folder / "a.npz").unlink()
    (folder / "constant.npz").unlink()
    unknown = str(hlorank.Evaluator("layout:own:random", tmp_path).eval({"withheld": [1, 2, 3]}))
    assert unknown.count("unknown") == 4
    assert evaluator.eval(scores) == result, "what was read is kept"


def test_names_alone_are_collections_of_the_package() -> None:
    evaluator, data = hlorank.Evaluator("tile/cpu"), hlorank.datasets.load("tile/cpu", labels=True)
    best = evaluator.eval({graph.name: graph.label for graph in data.test})
    assert (best["graphs"], best["kendall_tau"], best["slowdown_1"]) == (len(data.test), pytest.approx(1), 0)
    with pytest.raises(ConfigError, match="tile/cpu"):
        hlorank.Evaluator("tile/cpus")


def test_arrays_tensors_lists_are_scores_and_wrong_ones_name_the_graph(tiny_collections: Path, tmp_path: Path) -> None:
    evaluator = hlorank.Evaluator(LAYOUT, tiny_collections / "raw", "valid", tmp_path / "cache")
    rng = np.random.default_rng(0)
    scores: Scores = {name: rng.normal(size=count) for name, count in evaluator.configurations.items()}
    result = evaluator.eval(scores)
    assert evaluator.eval({name: torch.tensor(one, requires_grad=True) for name, one in scores.items()}) == result
    assert evaluator.eval({name: one.tolist() for name, one in scores.items()}) == result
    first, second = evaluator.configurations
    text, count = evaluator.expected_input_format, evaluator.configurations[second]
    assert all(part in text for part in (first, f"{evaluator.configurations[first]:,}", "lower"))
    for wrong, named in (
        (scores | {second: scores[second][:-1]}, second),
        (scores | {second: scores[second][None]}, second),
        (scores | {second: scores[second] * math.nan}, second),
        (scores | {second: [*scores[second][:-1], math.inf]}, second),
        (scores | {second: ["fast"] * count}, second),
        (scores | {"synthetic_test_000": [1.0]}, "split test"),
        ({second: scores[second]}, first),
        ({}, first),
        ([1, 2], "list"),
    ):
        with pytest.raises(DataError, match=named):
            evaluator.eval(wrong)  # type: ignore[arg-type] # wrong on purpose


def test_wrong_collections_are_refused(tiny_collections: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tile" / "own" / "train"
    folder.mkdir(parents=True)
    save(folder / "k.npz", tile_arrays())
    for collection, root, split, error, named in (
        (LAYOUT, tiny_collections / "raw", "validation", ConfigError, "split='validation'"),
        ("layout/cpu/random", tiny_collections / "raw", "test", DataError, "layout/cpu/random"),
        ("tile/own", tmp_path, "test", DataError, "1 in train"),
    ):
        with pytest.raises(error, match=named):
            hlorank.Evaluator(collection, root, split, tmp_path / "cache")  # type: ignore[arg-type] # wrong on purpose
