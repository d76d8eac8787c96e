"""The public Evaluator: equal to the stage evaluate, and strict about what it is given."""

from __future__ import annotations

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
from hlorank.evaluation.evaluate import GraphFolders, score_model
from hlorank.files import METRICS, DataError, read_json
from hlorank.metrics import kendall_tau, noise_ceiling, ordered_pair_accuracy, top_k_slowdown
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.trained_model import load_trained
from hlorank.stages.train import train
from tests.data.npz_files import layout_arrays, save, tile_arrays

Settings = Callable[..., Config]
Scores = dict[str, Any]

LAYOUT = "layout:synthetic:random"


@pytest.fixture
def evaluator(tiny_collections: Path, tmp_path: Path) -> hlorank.Evaluator:
    return hlorank.Evaluator(LAYOUT, tiny_collections / "raw", "valid", tmp_path / "cache")


def scores_of(evaluator: hlorank.Evaluator) -> Scores:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=count) for name, count in evaluator.configurations.items()}


@pytest.mark.parametrize(("collection", "method"), [(LAYOUT, "gst"), ("tile:synthetic", "linear_ranking")])
def test_metrics_are_those_of_the_stage_to_the_last_digit(
    collection: str, method: str, settings: Settings, tiny_collections: Path, tmp_path: Path
) -> None:
    config, address = settings(collection=collection, method=method), Collection.parse(collection)
    train(config, tmp_path / "model")
    folders = GraphFolders(*(Path(root, address.path) for root in (config.paths.features, config.paths.segments)))
    stage = tmp_path / "report"
    score_model(tmp_path / "model", address, folders, config.evaluate, stage)
    trained = load_trained(tmp_path / "model", config.evaluate.memory_bytes, "cpu")
    graphs = GraphLoader(folders.features, None if trained.partition is None else folders.segments)
    splits: tuple[Split, ...] = ("valid", "test")
    for split in splits:
        scores: Scores = {}
        for name in graphs.store.graphs(split):
            graph = graphs.store.open(split, name)
            scores[name] = trained.score(graph, graphs.open_partition(split, name))[graph.row_of]
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
    result = hlorank.Evaluator("layout:own:random", tmp_path).eval(scores)
    runtime = [30, 10, 20]
    expected = {
        "kendall_tau": kendall_tau(scores["a"], runtime),
        "opa": ordered_pair_accuracy(scores["a"], runtime),
        "slowdown_1": top_k_slowdown(scores["a"], runtime, 1),
        "noise_ceiling": noise_ceiling(0.5),
    }
    assert expected["slowdown_1"] == 1.0
    assert {key: result[key] for key in expected} == expected
    assert (result["graphs"], result["skipped"], result["withheld"]) == (1, 1, 1)
    notes = {row["graph"]: (row["kendall_tau"], row["note"]) for row in result["per_graph"]}
    assert notes["withheld"] == (None, "labels withheld")
    assert notes["constant"] == (None, "fewer than two distinct runtimes")
    json.dumps(result, allow_nan=False)


def test_lower_scores_are_faster(evaluator: hlorank.Evaluator, tiny_collections: Path) -> None:
    runtimes: Scores = {}
    for name in evaluator.configurations:
        with np.load(tiny_collections / "raw/layout/synthetic/random/valid" / f"{name}.npz") as file:
            runtimes[name] = file["config_runtime"]
    best = evaluator.eval(runtimes)
    assert best["slowdown_1"] == 0.0
    assert best["kendall_tau"] == best["opa"] == 1.0
    worst = evaluator.eval({name: -runtime for name, runtime in runtimes.items()})
    assert (worst["kendall_tau"], worst["opa"]) == (-1.0, 0.0)


def test_tensors_and_lists_are_scores(evaluator: hlorank.Evaluator) -> None:
    scores = scores_of(evaluator)
    result = evaluator.eval(scores)
    assert evaluator.eval({name: torch.tensor(one, requires_grad=True) for name, one in scores.items()}) == result
    assert evaluator.eval({name: one.tolist() for name, one in scores.items()}) == result
    text, (first, *_) = evaluator.expected_input_format, evaluator.configurations
    assert all(part in text for part in (first, f"{evaluator.configurations[first]:,}", "lower"))


def test_wrong_scores_name_the_graph(evaluator: hlorank.Evaluator) -> None:
    scores = scores_of(evaluator)
    first, second = evaluator.configurations
    count = evaluator.configurations[second]
    infinite = scores[second].copy()
    infinite[5] = math.inf
    for changed in (
        {second: scores[second][:-1]},
        {second: scores[second][None]},
        {second: scores[second] * math.nan},
        {second: infinite},
        {second: ["fast"] * count},
    ):
        with pytest.raises(DataError, match=second):
            evaluator.eval(scores | changed)
    with pytest.raises(DataError, match="split test"):
        evaluator.eval(scores | {"synthetic_test_000": [1.0]})
    with pytest.raises(DataError, match=first):
        evaluator.eval({second: scores[second]})
    with pytest.raises(DataError, match=first):
        evaluator.eval({})
    with pytest.raises(DataError, match="list"):
        evaluator.eval([1, 2])  # type: ignore[arg-type]


def test_wrong_collections_are_refused(tiny_collections: Path, tmp_path: Path) -> None:
    raw = tiny_collections / "raw"
    with pytest.raises(ConfigError, match="split='validation'"):
        hlorank.Evaluator(LAYOUT, raw, "validation", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="layout/cpu/random"):
        hlorank.Evaluator("layout/cpu/random", raw, cache=tmp_path)
    folder = tmp_path / "tile" / "own" / "train"
    folder.mkdir(parents=True)
    save(folder / "k.npz", tile_arrays())
    with pytest.raises(DataError, match="1 in train"):
        hlorank.Evaluator("tile/own", tmp_path)
