"""Rankings of graphs from raw files, which equal those of the stage evaluate, and their JSON values."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hlorank
from hlorank.config import Config
from hlorank.data.collection import Collection, graph_files, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements, TileConfigurations
from hlorank.data.graph import Graph
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.likeness import pooled
from hlorank.files import DataError
from hlorank.metrics import kendall_tau, ranking
from hlorank.models.baselines.baseline import BASELINES
from hlorank.ranking.inputs import InputGraph
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.result import doubt_text, doubts, ranked_graph, top_configurations
from hlorank.stages.train import train
from tests.training.baselines.conftest import with_library

Settings = Callable[..., Config]


def given(measured: MeasuredGraph) -> tuple[Graph, LayoutConfigurations | TileConfigurations]:
    return measured.graph, measured.configurations


@pytest.mark.parametrize(
    ("method", "address"),
    [
        *(with_library(method, "layout:synthetic:random") for method in ("gst", *BASELINES)),
        *((method, "tile:synthetic") for method in ("full", "gradient_boosting")),
    ],
)
def test_raw_graphs_rank_as_in_evaluation_and_equal_embeddings_score_the_same(
    method: str, address: str, settings: Settings, tmp_path: Path
) -> None:
    collection, baseline = Collection.parse(address), method in BASELINES  # which needs no segments
    config = settings(collection=address, method=method, **({"paths__segments": "none"} if baseline else {}))
    train(config, tmp_path / "model")
    ranker = Ranker(tmp_path / "model")
    assert ranker.collection == collection
    evaluate(config, tmp_path / "model", tmp_path / "report")
    with (tmp_path / "report" / "per_graph.csv").open(newline="") as file:
        evaluated = {row["graph"]: float(row["kendall_tau"]) for row in csv.DictReader(file)}
    paths = [path for split in ("valid", "test") for path in graph_files(Path(config.paths.raw), collection, split)]
    assert {path.stem for path in paths} == evaluated.keys()
    for path in paths:
        measured = read_graph(path, collection.kind)
        score = ranker.score(*given(measured), name=path.stem)
        runtime, normalizer = measured.measurements.runtime, measured.measurements.normalizer
        label = runtime if normalizer is None else runtime / normalizer
        assert kendall_tau(score, label) == pytest.approx(evaluated[path.stem])
        np.testing.assert_array_equal(ranker.rank(*given(measured), name=path.stem), np.argsort(score, kind="stable"))


def test_the_wrong_kind_is_refused(linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    path = graph_files(tiny_collections / "raw", Collection.parse("tile:synthetic"), "test")[0]
    with pytest.raises(DataError, match="expected configurations of layout:synthetic:random, found TileConfigurations"):
        Ranker(linear_model()).score(*given(read_graph(path, "tile")))


def test_arrays_of_layouts(linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    ranker = hlorank.load(linear_model())
    measured = read_graph(graph_files(tiny_collections / "raw", ranker.collection, "valid")[0], "layout")
    layouts = measured.configurations
    assert isinstance(layouts, LayoutConfigurations)
    expected = ranker.score(*given(measured))
    for dtype in (np.int8, np.int64, np.float32, np.float64):
        array = layouts.values().astype(dtype)
        np.testing.assert_array_equal(ranker.score(measured.graph, array), expected)
        np.testing.assert_array_equal(ranker.rank(measured.graph, array), np.argsort(expected, kind="stable"))
    nan = layouts.values().astype(np.float64)
    nan[3, 0, 1] = np.nan
    for wrong, message in (
        (nan, r"node_config_feat: expected whole numbers in -1\.\.5, found nan at \[3, 0, 1\]"),
        (
            layouts.values()[:, 1:],
            r"configurations: expected shape \(configurations, \d+, 18\), for the nodes that are a",
        ),
        (layouts.values()[:0], "expected at least one configuration, found none"),
        (layouts.values().astype(str), "configurations: expected whole or real numbers, found dtype <U"),
    ):
        with pytest.raises(DataError, match=message):
            ranker.score(measured.graph, wrong)


def test_arrays_of_tiles(linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    ranker = hlorank.load(linear_model("tile:synthetic"))
    measured = read_graph(graph_files(tiny_collections / "raw", ranker.collection, "valid")[0], "tile")
    assert isinstance(measured.configurations, TileConfigurations)
    feat, expected = measured.configurations.feat, ranker.score(*given(measured))
    for array in (feat, feat.astype(np.float64), feat.astype(np.int64)):
        np.testing.assert_array_equal(ranker.score(measured.graph, array), expected)
    huge = feat.astype(np.float64)
    huge[1, 2] = 1e300
    for wrong, message in ((feat[:, 1:], "config_feat: expected shape"), (huge, r"found inf at \[1, 2\]")):
        with pytest.raises(DataError, match=message):
            ranker.score(measured.graph, wrong)


def test_scores_that_are_not_finite_are_refused(
    linear_model: Callable[..., Path], tiny_collections: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = hlorank.load(linear_model())
    measured = read_graph(graph_files(tiny_collections / "raw", ranker.collection, "valid")[0], "layout")
    row = int(np.argmax(np.diff(ranker.score(*given(measured))) != 0)) + 1

    def overflowing(features: GraphFeatures, segments: object) -> NDArray[np.float64]:
        scores = np.zeros(features.distinct)
        scores[features.row_of[row]] = np.inf
        return scores

    monkeypatch.setattr(ranker._scorer, "score", overflowing)
    with pytest.raises(DataError, match=rf"scores: expected finite numbers, found inf for configuration {row}"):
        ranker.rank(*given(measured))


def test_a_program_is_no_graph(linear_model: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="rank_program"):
        hlorank.load(linear_model()).rank(b"program", None)  # type: ignore[arg-type] # the mistake


def test_importing_hlorank_is_light() -> None:
    code = "import sys, hlorank; print({'torch', 'numpy', 'mlflow', 'pandas'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


SCORES = np.array([0.5, -1.0, 0.5, 2.0])


def kernel(runtime: list[int], normalizer: list[int]) -> InputGraph:
    """Return a kernel with four tiles; the last two have equal features."""
    graph = Graph(
        np.zeros((1, 140), dtype=np.float32),
        np.array([63], dtype=np.uint8),
        np.zeros((0, 2), dtype=np.int64),
        np.array([0, 1]),
    )
    tiles = TileConfigurations(np.repeat([[0.0], [1.0], [2.0], [2.0]], 24, axis=1).astype(np.float32))
    measurements = Measurements(np.array(runtime), np.array(normalizer))
    return InputGraph(Path("kernel.npz"), MeasuredGraph("kernel", graph, tiles, measurements), None, None)


def test_the_first_configurations_and_ties_by_index() -> None:
    assert top_configurations(SCORES, 3) == [
        {"rank": 1, "configuration": 1, "score": -1.0},
        {"rank": 2, "configuration": 0, "score": 0.5},
        {"rank": 3, "configuration": 2, "score": 0.5},
    ]
    assert len(top_configurations(SCORES, 9)) == 4


def test_tiles_compare_by_normalised_runtimes() -> None:
    given = kernel([300, 100, 100, 400], [100, 100, 200, 100])
    ranked = ranked_graph(given, SCORES, ranking(SCORES), 4, compare=True)
    assert [row["configuration"] for row in ranked["top"]] == [1, 0, 2, 3]
    assert [row["runtime_ns"] for row in ranked["top"]] == [100, 300, 100, 400]
    assert [row["slowdown"] for row in ranked["top"]] == [1.0, 5.0, 0.0, 7.0]
    assert [row["measured_rank"] for row in ranked["top"]] == [2, 3, 1, 4]
    comparison = ranked["comparison"]
    assert (comparison["slowdown_1"], comparison["slowdown_5"], comparison["kaggle"]) == (1.0, 0.0, 1.0)
    assert comparison["repeat_ceiling"] < 1
    assert comparison["noise_ceiling"] is None
    json.dumps(ranked, allow_nan=False)
    for runtime in (0, 200):  # withheld, or all equal
        ranked = ranked_graph(kernel([runtime] * 4, [100] * 4), SCORES, ranking(SCORES), 4, compare=True)
        assert (ranked["comparison"], "runtime_ns" in ranked["top"][0]) == (None, bool(runtime))


def test_doubts(tmp_path: Path, linear_model: Callable[..., Path]) -> None:
    spec = hlorank.load(linear_model()).spec.features
    known = kernel([100] * 4, [100] * 4)
    graphs = pooled(known.measured.graph)[None]
    trusted = spec.model_copy(update={"backend": "cpu", "trained_graphs": graphs, "trained_limit": 0.5})
    assert doubts(known, SCORES, trusted) == []
    far = trusted.model_copy(update={"trained_graphs": graphs + 3})  # ten times the least scale
    assert doubts(known, SCORES, far) == [{"doubt": "unlike", "found": pytest.approx(20), "limit": 1}]
    assert doubts(known, SCORES, far.model_copy(update={"trained_limit": 0.0})) == []
    assert doubts(known, np.full(4, 1 / 3), trusted) == [{"doubt": "alike", "found": 1, "expected": 4}]
    folder = tmp_path / "layout/xla/random/test"  # of TpuGraphs' tree, without a JSON file
    folder.mkdir(parents=True)
    other = {"doubt": "hardware", "found": "tpu-v3", "expected": "cpu"}
    assert doubts(replace(known, file=folder / "a.npz"), SCORES, trusted) == [other]
    (folder / "a.json").write_text(json.dumps({"collection": "layout:cpu:random", "split_half_tau": 0.41}))
    noise = {"doubt": "noise", "found": 0.41, "limit": 0.5}
    assert doubts(replace(known, file=folder / "a.npz"), SCORES, trusted) == [noise]
    assert all(doubt_text(doubt) for doubt in (other, noise))
