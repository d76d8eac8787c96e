"""Evaluation of collections: tables, means of metrics, and models on their graphs."""

import csv
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.compute import SERIAL
from hlorank.config import Config, EvaluateConfig
from hlorank.data.collection import Collection, Split, graph_files, read_graph
from hlorank.evaluation import evaluate as module
from hlorank.evaluation.evaluate import SUBMISSION, ModelScores, evaluate, evaluate_collection
from hlorank.evaluation.graph_report import PER_GRAPH, PREDICTIONS, WRONG, per_graph_columns
from hlorank.evaluation.submission import check_orders, read_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import METRICS, RUN, SCORES, DataError, read_json, write_json
from hlorank.metrics import group_medians, noise_ceiling
from hlorank.stages.train import train
from tests.evaluation.conftest import make_graph
from tests.featurize.small_graphs import fitted
from tests.sections import compute_config

Settings = Callable[..., Config]

LAYOUT, TILE = Collection.parse("layout:xla:default"), Collection.parse("tile:xla")


def ascending(graph: GraphFeatures) -> NDArray[np.float64]:
    return np.arange(graph.distinct, dtype=np.float64)


class Memory(ModelScores):
    """Graphs by split, and the function that scores them."""

    store = property(lambda self: self)
    spec = SimpleNamespace(opcodes=np.arange(256), options=SimpleNamespace(operand_layouts=True))
    splits: dict[str, dict[str, GraphFeatures]]
    function: Callable[[GraphFeatures], NDArray[np.float64]]

    def __init__(self, function: Callable[..., Any] = ascending, **splits: list[GraphFeatures]) -> None:
        named = {split: {graph.name: graph for graph in graphs} for split, graphs in splits.items()}
        vars(self).update(splits=named, function=function)

    def facts(self) -> dict[str, Any]:
        return {}

    def graphs(self, split: Split) -> list[str]:
        return list(self.splits.get(split, {}))

    def open(self, split: Split, name: str) -> GraphFeatures:
        return self.splits[split][name]

    def score(self, split: Split, graph: GraphFeatures) -> NDArray[np.float64]:
        return self.function(graph)


def config(*splits: Split, index_file: Path | None = None) -> EvaluateConfig:
    path = None if index_file is None else str(index_file)
    return EvaluateConfig(splits=list(splits), memory_bytes=2**20, index_file=path)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_means_over_graphs_by_split_and_rows_of_graphs(tmp_path: Path) -> None:
    features = Memory(
        valid=[
            replace(make_graph([0, 1, 2], [1, 2, 3], name="right"), split_half_tau=0.74),
            replace(make_graph([0, 1, 2], [3, 2, 1], name="wrong"), split_half_tau=1.0),
            make_graph([0, 1], [7, 7], name="=1+1"),
        ],
        test=[make_graph([0, 1, 1], [2, 6, 4], name="labelled"), make_graph([1, 0], [0, 0], name="hidden")],
    )
    found = evaluate_collection(features, LAYOUT, config("test", "valid"), tmp_path)

    metrics = read_json(tmp_path / METRICS)
    counts = {"graphs": 2, "skipped": 1, "withheld": 0}
    taus = {"kendall_tau": 0.0, "repeat_ceiling": 1.0, "opa": 0.5, "kaggle": 0.0}
    slowdowns = {"slowdown_1": 1.0, "slowdown_5": 0.0, "slowdown_10": 0.0, "slowdown_100": 0.0}  # (0 / 1 + 2 / 1) / 2
    taus["noise_ceiling"] = (noise_ceiling(0.74) + 1) / 2  # both ranked graphs were measured twice
    assert metrics["valid"] == pytest.approx(counts | taus | slowdowns)
    tau = pytest.approx(2 / math.sqrt(3 * 2))
    labelled = {"graphs": 1, "skipped": 0, "withheld": 1, "kendall_tau": tau, "opa": pytest.approx(2 / 3)}
    assert metrics["test"] | labelled == metrics["test"]
    assert (metrics["test"]["repeat_ceiling"], found["test/kendall_tau"]) == (tau, metrics["test"]["kendall_tau"])
    assert (found["valid/skipped"], metrics["test"]["noise_ceiling"], "test/noise_ceiling" in found) == (1, None, False)
    assert all(isinstance(value, float) for value in found.values())
    shown = {"tau": 0.0, "slowdown_1": 1.0, "slowdown_5": 0.0}
    assert read_json(tmp_path / SCORES) == {"valid": shown, "test": shown | {"tau": 0.816, "slowdown_1": 0.0}}

    right, _, equal, row, hidden = table(tmp_path / PER_GRAPH)
    columns = ("split_half_tau", "noise_ceiling", "wrong_above_4", "wrong")
    assert [right[name] for name in columns] == ["0.74", str(noise_ceiling(0.74)), "0.0", "0.0"]
    assert (float(right["noise_width"]) > 0, row["noise_width"], row["wrong_above_4"]) == (True, "", "")
    assert list(row) == per_graph_columns("layout")
    assert (equal["split"], equal["graph"], equal["note"]) == ("valid", "'=1+1", "fewer than two distinct runtimes")
    assert (row["configurations"], row["distinct"], row["nodes"]) == ("3", "2", "2")
    assert float(row["kendall_tau"]) == tau
    assert {hidden[name] for name in ("kendall_tau", "kaggle", "wrong", *WRONG)} == {""}
    points = [point for point in table(tmp_path / PREDICTIONS) if point["split"] == "test"]
    assert [tuple(point.values())[1:] for point in points] == [
        ("labelled", "0", "0.0", "0.0"),
        ("labelled", "2", "0.75", "0.5"),
        ("labelled", "1", "0.75", "1.0"),
    ]


def test_misjudged_properties_are_means_over_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.evaluation.graph_report.properties", lambda graph, rows, spec: {"index": rows})
    names = ("a.small", "a.large", "b")
    graphs = [replace(make_graph(range(12), range(12, 0, -1), name=name), family=name[0]) for name in names]
    graphs.append(make_graph(range(2), [1, 2], name="few"))
    features = Memory(
        lambda graph: np.zeros(len(graph.row_of)), valid=graphs, test=[make_graph([0, 1], [0, 0], name="hidden")]
    )
    evaluate_collection(features, LAYOUT, config("valid", "test"), tmp_path)
    (row,) = table(tmp_path / "properties.csv")
    assert float(row.pop("effect")) == pytest.approx(-1)
    assert row == {"split": "valid", "property": "index", "families": "2", "agreeing": "2", "graphs": "3"}


def test_withheld_graphs_are_submitted_with_ties_by_index(tmp_path: Path) -> None:
    layout = make_graph([1, 0, 2, 0, 1], [0] * 5, name="hidden")
    known = make_graph([0, 1], [1, 2], name="known")
    evaluate_collection(Memory(test=[layout, known]), LAYOUT, config("test"), tmp_path)
    assert (tmp_path / SUBMISSION).read_text() == "ID,TopConfigs\nlayout:xla:default:hidden,1;3;0;4;2\n"
    kernels = [
        make_graph([0] * 25, [0] * 25, [1] * 25, name="one"),
        make_graph(range(9), [0] * 9, [1] * 9, name="nine"),
        make_graph([1, 0], [0, 0], [1, 1], name="two"),
    ]
    descending = Memory(lambda graph: -ascending(graph), test=kernels)
    evaluate_collection(descending, TILE, config("test"), tmp_path)
    text = (tmp_path / SUBMISSION).read_text()
    assert text == "ID,TopConfigs\ntile:xla:one,0;1;2;3;4\ntile:xla:nine,8;7;6;5;4\ntile:xla:two,0;1\n"
    metrics = read_json(tmp_path / METRICS)["test"]
    assert (metrics["graphs"], metrics["withheld"], metrics["kaggle"], metrics["slowdown_5"]) == (0, 3, None, None)
    found = evaluate_collection(Memory(), TILE, config("valid"), tmp_path)
    assert found == {"valid/graphs": 0.0, "valid/skipped": 0.0, "valid/withheld": 0.0}
    assert table(tmp_path / PER_GRAPH) == []
    assert (tmp_path / PREDICTIONS).read_text() == "split,graph,configuration,predicted_rank,measured_rank\n"
    assert (tmp_path / SUBMISSION).read_text() == "ID,TopConfigs\n"


def test_listed_configurations_of_valid_graphs_are_measured_next_to_all(tmp_path: Path) -> None:
    write_json(path := tmp_path / "indices.json", {"a": [0, 1, 1], "elsewhere": [99]})
    # Of graph a, configurations 0 and 1 are in the right order and 2 is not; b is not listed; lists are for valid.
    features = Memory(
        valid=[make_graph([0, 1, 2], [2, 3, 1], name="a"), make_graph([0, 1], [2, 1], name="b")],
        test=[make_graph([0, 1], [1, 2], name="a")],
    )
    found = evaluate_collection(features, LAYOUT, config("valid", "test", index_file=path), tmp_path)
    assert found["valid/kendall_tau"] == pytest.approx((-1 / 3 - 1) / 2)
    assert found["valid/indexed/kendall_tau"] == pytest.approx(1.0)
    assert (found["valid/graphs"], found["valid/indexed/graphs"]) == (2, 1)
    assert not [key for key in found if key.startswith("test/indexed")]
    columns = ("graph", "protocol", "configurations", "note")
    assert [tuple(row[name] for name in columns) for row in table(tmp_path / PER_GRAPH)] == [
        ("a", "all", "3", ""),
        ("a", "indexed", "3", "1 of 3 listed indices are repeats"),
        ("b", "all", "2", "not in indices.json"),
        ("a", "all", "2", ""),
    ]
    assert len(table(tmp_path / PREDICTIONS)) == 3 + 2 + 2


WRONG_INDICES = [*([0, wrong] for wrong in (4, -1, 1.0, "1", True, None, [1])), [], {"0": 1}, 1, 7, "0"]


@pytest.mark.parametrize("content", [*({"a": wrong} for wrong in WRONG_INDICES), {"bert": [0]}, [0, 1]])
def test_a_wrong_index_file_is_named_before_anything_is_scored(tmp_path: Path, content: dict[str, Any]) -> None:
    write_json(path := tmp_path / "indices.json", content)
    features = Memory(lambda graph: 1 / 0, valid=[make_graph(range(4), [1, 2, 3, 4], name="a")])
    with pytest.raises(DataError, match=r"indices\.json: " + ("a: .*" if "a" in content else "")) as caught:
        evaluate_collection(features, LAYOUT, config("valid", index_file=path), tmp_path / "report")
    if "a" in content and isinstance(wrong := content["a"], list) and wrong:
        assert caught.value.found == wrong[1]
    assert not (tmp_path / "report").exists()


def test_files_that_name_another_order_of_configurations_are_refused_and_others_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = [make_graph([0, 1, 2], [1, 2, 3], name="a"), make_graph([2, 0, 1], [1, 2, 3], name="b")]
    for graph in graphs:
        vars(graph.configurations)["codebook"][:, 0] = [1, 3, 2]
    features = Memory(valid=graphs, test=[replace(graph, runtime=np.zeros(3, dtype=np.int64)) for graph in graphs])
    write_json(path := tmp_path / "indices.json", {"a": [0, 1], "b": [0, 1]})
    settings = config("valid", "test", index_file=path)
    evaluate_collection(features, LAYOUT, settings, tmp_path / "report")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    submission = tmp_path / "report" / SUBMISSION
    shutil.copy(f"{submission}.orders.json", f"{path}.orders.json")  # the graphs of test are those of valid
    check_orders(submission, LAYOUT, graphs)
    evaluate_collection(features, LAYOUT, settings, tmp_path / "report")
    assert len(caplog.records) == 1
    swapped = [replace(graphs[0], row_of=graphs[1].row_of), graphs[1]]
    for call in (
        lambda: evaluate_collection(Memory(valid=swapped), LAYOUT, config("valid", index_file=path), tmp_path),
        lambda: check_orders(submission, LAYOUT, swapped),
    ):
        with pytest.raises(DataError, match=r"a: .*\.orders\.json"):
            call()


@pytest.mark.parametrize("scores", [[0.0, math.nan], [-math.inf, 0.0], [0.0, 1.0, 2.0]])
def test_wrong_scores_name_the_graph_and_leave_the_old_tables(tmp_path: Path, scores: list[float]) -> None:
    (tmp_path / PER_GRAPH).write_text("old")
    features = Memory(lambda graph: np.array(scores), valid=[make_graph([0, 1, 1], [1, 2, 3], name="bert")])
    with pytest.raises(DataError, match="scores of valid/bert: "):
        evaluate_collection(features, LAYOUT, config("valid"), tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(PER_GRAPH, "old")]


def test_real_layout_graphs(shared_data: Path, tmp_path: Path) -> None:
    graphs: dict[str, list[GraphFeatures]] = {}
    splits: tuple[Split, ...] = ("valid", "test")
    for split in splits:
        (path,) = graph_files(shared_data / "tpugraphs" / "npz", LAYOUT, split)
        measured = read_graph(path, "layout")
        graphs[split] = [featurize_graph(measured, fitted(str(LAYOUT), measured, prune_hops=None))]
    features = Memory(lambda graph: group_medians(graph.row_of, graph.label), **graphs)
    settings = config(*splits, index_file=shared_data / "eval_indices" / "xla_default.json")
    found = evaluate_collection(features, LAYOUT, settings, tmp_path)
    # Repeats must tie: 0.81 is all that a model that knew everything would reach on unet_3d.
    assert found["valid/kendall_tau"] == pytest.approx(found["valid/repeat_ceiling"]) == pytest.approx(0.81, abs=0.01)
    assert found["valid/slowdown_1"] < 1e-3
    whole, indexed, hidden = table(tmp_path / PER_GRAPH)
    assert (whole["nodes"], whole["configurations"]) == ("3163", "1965")
    assert (indexed["protocol"], indexed["configurations"], indexed["note"]) == ("indexed", "1000", "")
    assert len(table(tmp_path / PREDICTIONS)) == 200
    ((row_id, indices),) = read_submission(tmp_path / SUBMISSION)
    assert (row_id, len(indices)) == (f"layout:xla:default:{hidden['graph']}", int(hidden["configurations"]))


@pytest.fixture(scope="module")
def trained(settings_in: Callable[[Path], Settings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a model of gst and one of linear_ranking, whose training needs no segments."""
    folder = tmp_path_factory.mktemp("trained")
    settings = settings_in(folder)
    train(settings(method="gst"), folder / "gst")
    train(settings(method="linear_ranking", paths__segments="none"), folder / "linear_ranking")
    return folder


@pytest.mark.parametrize(("method", "segments"), [("gst", True), ("linear_ranking", False)])
def test_a_model_is_evaluated_on_all_its_graphs(
    method: str,
    segments: bool,
    settings: Settings,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ModelScores, "one_segment", True)
    config = settings(method=method, **({} if segments else {"paths__segments": "none"}))
    model = Path(shutil.copytree(trained / method, tmp_path / "model"))
    write_json(model / RUN, read_json(model / RUN) | {"experiment": "best_layout"})
    metrics = evaluate(config, model, tmp_path / "report")
    written = read_json(tmp_path / "report" / METRICS)
    assert (written["experiment"], written.get("one_segment", False)) == ("best_layout", segments)
    assert (metrics["valid/graphs"], metrics["test/graphs"]) == (2, 1)
    assert metrics["valid/kendall_tau"] > 0, "it was trained"
    assert not caplog.records
    with pytest.raises(DataError, match="re-run the stage train"):
        evaluate(settings(method=method, collection="tile:synthetic"), model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gst", "linear_ranking"])
def test_worker_processes_write_the_same_tables(
    method: str, settings: Settings, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MIN_NODE_STATES", 0)
    for workers in (0, 1, 2):
        compute = compute_config(workers=workers) if workers else SERIAL
        changed = settings(method=method).model_copy(update={"compute": compute})
        evaluate(changed, trained / method, tmp_path / f"{workers}")
    for name in (METRICS, PER_GRAPH, PREDICTIONS, SUBMISSION):
        assert len({(tmp_path / f"{workers}" / name).read_bytes() for workers in (0, 1, 2)}) == 1


def test_graphs_of_one_segment_are_recognised(tmp_path: Path) -> None:
    scores = ModelScores(tmp_path, tmp_path, tmp_path, 1)
    assert not scores.one_segment
    for mean, expected in ((1.0, True), (1.02, False)):
        write_json(tmp_path / METRICS, {"graphs": 22, "segments_per_graph": mean})
        assert scores.one_segment == expected
