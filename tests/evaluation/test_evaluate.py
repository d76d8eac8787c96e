from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.compute import SERIAL
from hlorank.config import Config, EvaluateConfig
from hlorank.data.collection import SPLITS, Collection, Split, graph_files, read_graph
from hlorank.evaluation import evaluate as module
from hlorank.evaluation.errors import WRONG
from hlorank.evaluation.evaluate import (
    SUBMISSION,
    GraphFolders,
    ModelScores,
    evaluate,
    evaluate_collection,
    read_indices,
    score_model,
)
from hlorank.evaluation.graph_report import PER_GRAPH, PREDICTIONS, per_graph_columns
from hlorank.evaluation.submission import read_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import METRICS, RUN, DataError, read_json, write_json
from hlorank.metrics import group_medians, noise_ceiling
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.serialization import sealed
from hlorank.stages.train import train
from tests.sections import compute_config
from tests.training.baselines.conftest import with_library

MakeGraph = Callable[..., GraphFeatures]
Settings = Callable[..., Config]

LAYOUT, TILE = Collection.parse("layout:xla:default"), Collection.parse("tile:xla")


def ascending(graph: GraphFeatures) -> NDArray[np.float64]:
    return np.arange(graph.distinct, dtype=np.float64)


def oracle(graph: GraphFeatures) -> NDArray[np.float64]:
    return group_medians(graph.row_of, graph.label)


class Memory(ModelScores):
    """Graphs by split, and the function that scores them."""

    splits: dict[str, dict[str, GraphFeatures]]
    function: Callable[[GraphFeatures], NDArray[np.float64]]

    def __init__(self, function: Callable[..., Any] = ascending, **splits: list[GraphFeatures]) -> None:
        named = {split: {graph.name: graph for graph in graphs} for split, graphs in splits.items()}
        vars(self).update(splits=named, function=function)

    def graphs(self, split: Split) -> list[str]:
        return list(self.splits.get(split, {}))

    def open(self, split: Split, name: str) -> GraphFeatures:
        return self.splits[split][name]

    def score(self, split: Split, graph: GraphFeatures) -> NDArray[np.float64]:
        return self.function(graph)

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        return {"index": rows.astype(np.float64)}


def config(*splits: Split, index_file: Path | str | None = None) -> EvaluateConfig:
    return EvaluateConfig(
        splits=list(splits), memory_bytes=2**20, index_file=None if index_file is None else str(index_file)
    )


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_means_over_graphs_by_split_and_rows_of_graphs(make_graph: MakeGraph, tmp_path: Path) -> None:
    features = Memory(
        valid=[
            make_graph([0, 1, 2], [1, 2, 3], name="right"),
            make_graph([0, 1, 2], [3, 2, 1], name="wrong"),
            make_graph([0, 1], [7, 7], name="equal"),
        ],
        test=[make_graph([0, 1, 1], [2, 6, 4], name="labelled"), make_graph([1, 0], [0, 0], name="hidden")],
    )
    found = evaluate_collection(features, LAYOUT, config("test", "valid"), tmp_path)

    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["valid"] == {
        "graphs": 2,
        "skipped": 1,
        "withheld": 0,
        "kendall_tau": pytest.approx(0.0),
        "repeat_ceiling": pytest.approx(1.0),
        "noise_ceiling": None,
        "opa": 0.5,
        "slowdown_1": 1.0,  # (1 - 1) / 1 and (3 - 1) / 1
        "slowdown_5": 0.0,
        "slowdown_10": 0.0,
        "slowdown_100": 0.0,
        "kaggle": pytest.approx(0.0),
    }
    labelled = {key: metrics["test"][key] for key in ("graphs", "skipped", "withheld", "kendall_tau", "opa")}
    tau = pytest.approx(2 / math.sqrt(3 * 2))
    assert labelled == {"graphs": 1, "skipped": 0, "withheld": 1, "kendall_tau": tau, "opa": pytest.approx(2 / 3)}
    assert (metrics["test"]["repeat_ceiling"], found["test/kendall_tau"]) == (tau, metrics["test"]["kendall_tau"])
    assert (found["valid/skipped"], "valid/noise_ceiling" in found) == (1.0, False)
    assert all(isinstance(value, float) for value in found.values())

    *_, equal, row, hidden = table(tmp_path / "per_graph.csv")
    assert list(row) == per_graph_columns("layout")
    assert (equal["split"], equal["graph"], equal["note"]) == ("valid", "equal", "fewer than two distinct runtimes")
    assert (row["configurations"], row["distinct"], row["nodes"]) == ("3", "2", "2")
    assert float(row["kendall_tau"]) == tau
    assert (hidden["note"], hidden["kendall_tau"], hidden["kaggle"]) == ("labels withheld", "", "")
    assert {hidden[name] for name in ("wrong", *WRONG)} == {""}
    points = [point for point in table(tmp_path / "predictions.csv") if point["split"] == "test"]
    assert [point["graph"] for point in points] == ["labelled"] * 3
    assert [point["measured_rank"] for point in points] == ["0.0", "0.5", "1.0"]
    assert [point["predicted_rank"] for point in points] == ["0.0", "0.75", "0.75"]


def test_the_noise_ceiling_is_known_where_every_graph_was_measured_twice(make_graph: MakeGraph, tmp_path: Path) -> None:
    twice = replace(make_graph([0, 1], [1, 2], name="twice"), split_half_tau=0.74)
    perfect = replace(make_graph([0, 1], [1, 2], name="perfect"), split_half_tau=1.0)
    features = Memory(valid=[twice, perfect], test=[twice, make_graph([0, 1], [1, 2], name="once")])
    found = evaluate_collection(features, LAYOUT, config("valid", "test"), tmp_path)
    assert found["valid/noise_ceiling"] == pytest.approx((noise_ceiling(0.74) + 1) / 2)
    assert "test/noise_ceiling" not in found
    rows = table(tmp_path / "per_graph.csv")
    ceiling = str(noise_ceiling(0.74))
    columns = ("split_half_tau", "noise_ceiling", "wrong_above_4", "wrong")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("0.74", ceiling, "0.0", "0.0"),
        ("1.0", "1.0", "0.0", "0.0"),
        ("0.74", ceiling, "0.0", "0.0"),
        ("", "", "", "0.0"),
    ]
    assert [row["noise_width"] == "" for row in rows] == [False, False, False, True]


def test_properties_that_the_model_misjudges_are_means_over_families(make_graph: MakeGraph, tmp_path: Path) -> None:
    runtime = range(12, 0, -1)
    names = ("a.small", "a.large", "b")
    graphs = [replace(make_graph(range(12), runtime, name=name), family=name[0]) for name in names]
    graphs.append(make_graph(range(2), [1, 2], name="few"))
    features = Memory(
        lambda graph: np.zeros(len(graph.row_of)), valid=graphs, test=[make_graph([0, 1], [0, 0], name="hidden")]
    )
    evaluate_collection(features, LAYOUT, config("valid", "test"), tmp_path)
    (row,) = table(tmp_path / "properties.csv")
    assert float(row.pop("effect")) == pytest.approx(-1)
    assert row == {"split": "valid", "property": "index", "families": "2", "agreeing": "2", "graphs": "3"}


def test_withheld_graphs_are_submitted_with_ties_by_index(make_graph: MakeGraph, tmp_path: Path) -> None:
    layout = make_graph([1, 0, 2, 0, 1], [0] * 5, name="hidden")
    known = make_graph([0, 1], [1, 2], name="known")
    evaluate_collection(Memory(test=[layout, known]), LAYOUT, config("test"), tmp_path / "layout")
    text = (tmp_path / "layout" / "submission.csv").read_text()
    assert text == "ID,TopConfigs\nlayout:xla:default:hidden,1;3;0;4;2\n"

    kernels = [
        make_graph([0] * 25, [0] * 25, [1] * 25, name="one"),
        make_graph(range(9), [0] * 9, [1] * 9, name="nine"),
        make_graph([1, 0], [0, 0], [1, 1], name="two"),
    ]
    descending = Memory(lambda graph: -ascending(graph), test=kernels)
    evaluate_collection(descending, TILE, config("test"), tmp_path / "tile")
    text = (tmp_path / "tile" / "submission.csv").read_text()
    assert text == "ID,TopConfigs\ntile:xla:one,0;1;2;3;4\ntile:xla:nine,8;7;6;5;4\ntile:xla:two,0;1\n"
    metrics = json.loads((tmp_path / "tile" / "metrics.json").read_text())["test"]
    assert (metrics["graphs"], metrics["withheld"], metrics["kaggle"], metrics["slowdown_5"]) == (0, 3, None, None)


def test_listed_configurations_of_valid_graphs_are_measured_next_to_all(make_graph: MakeGraph, tmp_path: Path) -> None:
    path = index_file(tmp_path, {"a": [0, 1, 1], "elsewhere": [99]})
    # Of graph a, configurations 0 and 1 are in the right order and 2 is not; b is not listed; lists are for valid.
    features = Memory(
        valid=[make_graph([0, 1, 2], [2, 3, 1], name="a"), make_graph([0, 1], [2, 1], name="b")],
        test=[make_graph([0, 1], [1, 2], name="a")],
    )
    report = tmp_path / "report"
    found = evaluate_collection(features, LAYOUT, config("valid", "test", index_file=path), report)
    assert found["valid/kendall_tau"] == pytest.approx((-1 / 3 - 1) / 2)
    assert found["valid/indexed/kendall_tau"] == pytest.approx(1.0)
    assert (found["valid/graphs"], found["valid/indexed/graphs"]) == (2, 1)
    assert not [key for key in found if key.startswith("test/indexed")]
    columns = ("graph", "protocol", "configurations", "note")
    assert [tuple(row[name] for name in columns) for row in table(report / "per_graph.csv")] == [
        ("a", "all", "3", ""),
        ("a", "indexed", "3", "1 of 3 listed indices are repeats"),
        ("b", "all", "2", "not in indices.json"),
        ("a", "all", "2", ""),
    ]
    assert len(table(report / "predictions.csv")) == 3 + 2 + 2


def test_a_wrong_index_file_fails_before_anything_is_scored(make_graph: MakeGraph, tmp_path: Path) -> None:
    settings = config("valid", index_file=index_file(tmp_path, {"a": [0, 2]}))
    features = Memory(lambda graph: 1 / 0, valid=[make_graph([0, 1], [1, 2], name="a")])
    with pytest.raises(DataError, match=r"indices\.json: a: .*0\.\.1.*\b2"):
        evaluate_collection(features, LAYOUT, settings, tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("scores", [[0.0, math.nan], [-math.inf, 0.0], [0.0, 1.0, 2.0]])
def test_wrong_scores_name_the_graph(make_graph: MakeGraph, tmp_path: Path, scores: list[float]) -> None:
    features = Memory(lambda graph: np.array(scores), valid=[make_graph([0, 1, 1], [1, 2, 3], name="bert")])
    with pytest.raises(DataError, match="scores of valid/bert: "):
        evaluate_collection(features, LAYOUT, config("valid"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_splits_without_graphs_have_counts_and_no_means(tmp_path: Path) -> None:
    (tmp_path / "submission.csv").write_text("old")
    found = evaluate_collection(Memory(), TILE, config("valid"), tmp_path)
    assert found == {"valid/graphs": 0.0, "valid/skipped": 0.0, "valid/withheld": 0.0}
    assert table(tmp_path / "per_graph.csv") == []
    assert (tmp_path / "predictions.csv").read_text() == "split,graph,configuration,predicted_rank,measured_rank\n"
    assert (tmp_path / "submission.csv").read_text() == "ID,TopConfigs\n"


def real(data: Path, collection: Collection, split: Split) -> GraphFeatures:
    """Return a real graph with its distinct configurations."""
    (path,) = graph_files(data / "tpugraphs" / "npz", collection, split)
    return featurize_graph(read_graph(path, collection.kind), None)


def test_real_layout_graphs(shared_data: Path, tmp_path: Path) -> None:
    features = Memory(oracle, valid=[real(shared_data, LAYOUT, "valid")], test=[real(shared_data, LAYOUT, "test")])
    settings = config("valid", "test", index_file=shared_data / "eval_indices" / "xla_default.json")
    found = evaluate_collection(features, LAYOUT, settings, tmp_path)
    # Repeats must tie: 0.81 is all that a model that knew everything would reach on unet_3d.
    assert found["valid/kendall_tau"] == pytest.approx(found["valid/repeat_ceiling"]) == pytest.approx(0.81, abs=0.01)
    assert found["valid/slowdown_1"] < 1e-3
    whole, indexed, hidden = table(tmp_path / "per_graph.csv")
    assert (whole["nodes"], whole["configurations"]) == ("3163", "1965")
    assert (indexed["protocol"], indexed["configurations"], indexed["note"]) == ("indexed", "1000", "")
    assert len(table(tmp_path / "predictions.csv")) == 200
    ((row_id, indices),) = read_submission(tmp_path / "submission.csv")
    assert (row_id, len(indices)) == (f"layout:xla:default:{hidden['graph']}", int(hidden["configurations"]))


def test_real_tile_kernels(shared_data: Path, tmp_path: Path) -> None:
    features = Memory(oracle, **{split: [real(shared_data, TILE, split)] for split in SPLITS})
    found = evaluate_collection(features, TILE, config(*SPLITS), tmp_path)
    assert found["train/repeat_ceiling"] == found["train/kendall_tau"] == 0.0  # one distinct configuration
    assert table(tmp_path / "per_graph.csv")[0]["note"] == "one distinct configuration"
    ((row_id, indices),) = read_submission(tmp_path / "submission.csv")
    assert (row_id, len(indices)) == (f"tile:xla:{features.graphs('test')[0]}", 5)


def index_file(folder: Path, content: object) -> Path:
    path = folder / "indices.json"
    path.write_text(json.dumps(content))
    return path


def test_lists_keep_order_and_repeats_and_other_graphs_are_ignored(tmp_path: Path) -> None:
    path = index_file(tmp_path, {"a": [3, 0, 3], "elsewhere": [99]})
    indices = read_indices(path, {"a": 4, "not listed": 2})
    assert {name: found.tolist() for name, found in indices.items()} == {"a": [3, 0, 3]}


@pytest.mark.parametrize("wrong", [4, -1, 1.0, "1", True, None, [1]])
def test_a_wrong_index_is_named_with_file_graph_and_value(tmp_path: Path, wrong: object) -> None:
    path = index_file(tmp_path, {"a": [0, wrong]})
    with pytest.raises(DataError) as caught:
        read_indices(path, {"a": 4})
    assert (caught.value.file, caught.value.key, caught.value.found) == (path, "a", wrong)


@pytest.mark.parametrize("content", [{"a": []}, {"a": {"0": 1}}, {"a": 7}, {"a": "0"}, {"bert": [0]}, [0, 1]])
def test_another_index_file_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(DataError):
        read_indices(index_file(tmp_path, content), {"a": 4})


def test_the_published_list_of_unet_3d_in_random_repeats(shared_data: Path) -> None:
    path = shared_data / "eval_indices" / "xla_random.json"
    indices = read_indices(path, {"unet_3d.4x4.bf16": 481})["unet_3d.4x4.bf16"]
    assert (len(indices), len(np.unique(indices))) == (1000, 481)


def trained(config: Config, folder: Path) -> Path:
    train(config, folder)
    return folder


@pytest.mark.parametrize("method", ["gst", "linear_ranking"])
def test_a_model_is_evaluated_on_all_its_graphs(
    method: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphFolders, "one_segment", True)
    config, model = settings(method=method), trained(settings(method=method), tmp_path / "model")
    write_json(model / RUN, read_json(model / RUN) | {"experiment": "best_layout"})
    metrics = evaluate(config, model, tmp_path / "report")
    written = read_json(tmp_path / "report" / METRICS)
    assert (written["experiment"], written.get("one_segment", False)) == ("best_layout", method == "gst")
    assert (metrics["valid/graphs"], metrics["test/graphs"]) == (2, 1)
    assert metrics["valid/kendall_tau"] > 0, "it was trained"
    assert evaluate(config, model, tmp_path / "again") == metrics


@pytest.mark.parametrize("method", [*map(with_library, BASELINES)])
def test_a_baseline_needs_no_segments(method: str, settings: Settings, tmp_path: Path) -> None:
    config = settings(method=method, paths__segments=tmp_path / "none")
    model = trained(config, tmp_path / "model")
    assert evaluate(config, model, tmp_path / "report")["valid/graphs"] == 2
    with pytest.raises(DataError, match="re-run the stage train"):
        evaluate(settings(method=method, collection="tile:synthetic"), model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gst", "linear_ranking"])
def test_worker_processes_write_the_same_tables(
    method: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(method=method, trainer__max_epochs=1)
    model, collection = trained(config, tmp_path / "model"), Collection.parse(config.collection)
    folders = GraphFolders(Path(config.paths.features, collection.path), Path(config.paths.segments, collection.path))
    monkeypatch.setattr(module, "_MIN_NODE_STATES", 0)
    for workers in (0, 1, 2):
        compute = compute_config(workers=workers) if workers else SERIAL
        score_model(model, collection, folders, config.evaluate, tmp_path / f"{workers}", "cpu", 1, compute)
    for name in (METRICS, PER_GRAPH, PREDICTIONS, SUBMISSION):
        assert len({(tmp_path / f"{workers}" / name).read_bytes() for workers in (0, 1, 2)}) == 1


def test_an_untrained_model_is_warned_about(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(method="linear_ranking")
    model = trained(config, tmp_path / "model")
    write_json(model / "spec.json", sealed(read_json(model / "spec.json") | {"steps": 0}))
    evaluate(config, model, tmp_path / "report")
    assert [record.levelname for record in caplog.records if "never trained" in record.getMessage()] == ["WARNING"]


def test_graphs_of_one_segment_are_recognised(tmp_path: Path) -> None:
    folders = GraphFolders(tmp_path, tmp_path)
    assert not folders.one_segment
    for mean, expected in ((1.0, True), (1.02, False)):
        write_json(tmp_path / METRICS, {"graphs": 22, "segments_per_graph": mean})
        assert folders.one_segment == expected
