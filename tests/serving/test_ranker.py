"""A model ranks a graph from its raw file as evaluation ranks it from the store."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hlorank.collection import Collection, graph_files, read_graph
from hlorank.config import Config
from hlorank.evaluation.run import evaluate
from hlorank.io import DataError
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.folder import load_model
from hlorank.serving.ranker import Ranker
from hlorank.training.baselines.run import train_baseline
from hlorank.training.run import train

Settings = Callable[..., Config]


def trained(config: Config, folder: Path) -> Ranker:
    (train_baseline if config.method in BASELINES else train)(config, folder)
    return Ranker(folder)


@pytest.mark.parametrize(
    ("method", "address"),
    [
        *((method, "layout:synthetic:random") for method in ("gst", "full", *BASELINES)),
        *((method, "tile:synthetic") for method in ("gst", "full", "gradient_boosting", "linear_ranking", "random")),
    ],
)
def test_raw_graphs_rank_as_in_evaluation(method: str, address: str, settings: Settings, tmp_path: Path) -> None:
    collection, config = Collection.parse(address), settings(collection=address, method=method)
    ranker = trained(config, tmp_path / "model")
    assert ranker.collection == collection
    evaluate(config, tmp_path / "model", tmp_path / "report")
    with (tmp_path / "report" / "per_graph.csv").open(newline="") as file:
        evaluated = {row["graph"]: float(row["kendall_tau"]) for row in csv.DictReader(file)}
    paths = [path for split in ("valid", "test") for path in graph_files(Path(config.paths.raw), collection, split)]
    assert {path.stem for path in paths} == evaluated.keys()
    for path in paths:
        measured = read_graph(path, collection.kind)
        score = ranker.score(measured)
        runtime, normalizer = measured.measurements.runtime, measured.measurements.normalizer
        label = runtime if normalizer is None else runtime / normalizer
        assert kendall_tau(score, label) == pytest.approx(evaluated[path.stem])
        np.testing.assert_array_equal(ranker.rank(measured), np.argsort(score, kind="stable"))


def test_a_graph_that_no_store_holds_is_cut_as_the_others_were(settings: Settings, tmp_path: Path) -> None:
    config = settings(method="gst")
    ranker = trained(config, tmp_path / "model")
    path = graph_files(Path(config.paths.raw), Collection.parse(config.collection), "test")[0]
    whole = trained(settings(method="full"), tmp_path / "whole")
    measured = read_graph(path, "layout")
    assert not np.allclose(ranker.score(measured), whole.score(measured))


def test_the_wrong_kind_is_refused(settings: Settings, tmp_path: Path) -> None:
    ranker = trained(settings(method="full"), tmp_path / "model")
    path = graph_files(Path(settings().paths.raw), Collection.parse("tile:synthetic"), "test")[0]
    with pytest.raises(DataError, match="expected configurations of layout:synthetic:random, found TileConfigurations"):
        ranker.score(read_graph(path, "tile"))


@pytest.mark.parametrize("method", ["gst", *BASELINES])
def test_configurations_with_equal_embeddings_score_the_same(method: str, settings: Settings, tmp_path: Path) -> None:
    config = settings(method=method)
    ranker = trained(config, tmp_path / "model")
    path = graph_files(Path(config.paths.raw), Collection.parse(config.collection), "test")[0]
    measured = read_graph(path, "layout")
    scores, embedding = ranker.score(measured), ranker.embed(measured)
    assert len(embedding) == len(scores)
    _, group = np.unique(embedding, axis=0, return_inverse=True)
    assert 2 < group.max() + 1 < len(scores)  # repeated configurations share a row
    for number in range(group.max() + 1):
        np.testing.assert_allclose(scores[group == number], scores[group == number][0], rtol=1e-6, atol=1e-6)


def test_the_head_scores_the_embeddings(settings: Settings, tmp_path: Path) -> None:
    config = settings(method="gst")
    ranker = trained(config, tmp_path / "model")
    path = graph_files(Path(config.paths.raw), Collection.parse(config.collection), "test")[0]
    measured = read_graph(path, "layout")
    (model,), _ = load_model(tmp_path / "model", torch.device("cpu"))
    with torch.no_grad():
        scores = model.head(torch.from_numpy(ranker.embed(measured)).float()).squeeze(-1).numpy()
    np.testing.assert_allclose(scores, ranker.score(measured), rtol=1e-4, atol=1e-5)
