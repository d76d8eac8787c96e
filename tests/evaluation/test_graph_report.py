from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import (
    PREDICTIONS_PER_GRAPH,
    metric_names,
    predictions,
    properties,
    rank_metrics,
    report_graph,
)
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.hlo.node_features import OPCODES

MakeGraph = Callable[..., GraphFeatures]

# Rows 0 and 3 are one configuration. By score: 2 1 3 2. Of six pairs three agree, two do not, one ties.
ROW_OF, RUNTIME, SCORES = [0, 1, 2, 0], [100, 200, 300, 110], np.array([2.0, 1.0, 3.0, 2.0])


def test_layout_metrics_of_a_graph_with_a_repeated_configuration(make_graph: MakeGraph) -> None:
    report = report_graph("layout", "valid", make_graph(ROW_OF, RUNTIME), SCORES)
    assert {name: report[name] for name in metric_names("layout")} == pytest.approx(
        {
            "kendall_tau": (3 - 2) / math.sqrt(6 * 5),
            "repeat_ceiling": 5 / math.sqrt(6 * 5),
            "opa": 3 / 6,
            "slowdown_1": 1.0,
            "slowdown_5": 0.0,
            "slowdown_10": 0.0,
            "slowdown_100": 0.0,
            "kaggle": (3 - 2) / math.sqrt(6 * 5),
        }
    )
    columns = ("protocol", "nodes", "configurations", "distinct", "note")
    assert [report[name] for name in columns] == ["all", 2, 4, 3, ""]


def test_tile_metrics_rank_normalised_runtimes(make_graph: MakeGraph) -> None:
    # Labels 1..6, predicted in reverse: the best of the first five is 2, though its runtime is the longest.
    graph = make_graph(range(6), [7, 200, 30, 40, 50, 60], [7, 100, 10, 10, 10, 10])
    report = report_graph("tile", "valid", graph, np.arange(6, 0, -1.0))
    assert {name: report[name] for name in metric_names("tile")} == pytest.approx(
        {
            "kendall_tau": -1.0,
            "repeat_ceiling": 1.0,
            "opa": 0.0,
            "slowdown_1": 5.0,
            "slowdown_5": 1.0,
            "slowdown_10": 0.0,
            "kaggle": 0.0,
        }
    )


def test_listed_configurations_are_measured_among_themselves(make_graph: MakeGraph) -> None:
    graph = make_graph(ROW_OF, RUNTIME)
    report = report_graph("layout", "valid", graph, SCORES, np.array([2, 3, 3, 0]))
    # Scores 3 2 2 2, runtimes 300 110 110 100: three pairs agree, none disagrees; ties 3 and 1.
    assert report["kendall_tau"] == pytest.approx(3 / math.sqrt((6 - 3) * (6 - 1)))
    assert report["opa"] == pytest.approx(3 / 5)
    assert report["slowdown_1"] == pytest.approx(0.1)
    columns = ("protocol", "configurations", "distinct", "note")
    assert [report[name] for name in columns] == ["indexed", 4, 2, "1 of 4 listed indices are repeats"]


@pytest.mark.parametrize(
    ("row_of", "runtime", "note"),
    [
        ([0, 1], [0, 0], "labels withheld"),
        ([0, 1], [5, 5], "fewer than two distinct runtimes"),
        ([0, 0], [0, 0], "labels withheld; one distinct configuration"),
        ([0], [5], "fewer than two distinct runtimes; one distinct configuration"),
    ],
)
def test_a_graph_without_anything_to_rank_has_notes_and_no_metrics(
    make_graph: MakeGraph, row_of: list[int], runtime: list[int], note: str
) -> None:
    report = report_graph("layout", "test", make_graph(row_of, runtime), np.array(row_of, dtype=np.float64))
    assert ({report[name] for name in metric_names("layout")}, report["note"]) == ({None}, note)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=2, max_size=30))
def test_a_perfect_model_reaches_the_repeat_ceiling(rows: list[tuple[int, int]]) -> None:
    row_of, runtime = np.array(rows).T
    assume(runtime.min() < runtime.max())
    median = {row: np.median(runtime[row_of == row]) for row in row_of}
    scores = np.array([median[row] for row in row_of])
    metrics = rank_metrics("layout", row_of, scores, runtime.astype(np.float64))
    assert metrics["kendall_tau"] == pytest.approx(metrics["repeat_ceiling"])


def test_predictions_are_shares_of_mean_ranks(make_graph: MakeGraph) -> None:
    rows = predictions("valid", make_graph(ROW_OF, RUNTIME, name="unet"), SCORES)
    assert [row["split"] for row in rows] == ["valid"] * 4
    assert [row["graph"] for row in rows] == ["unet"] * 4
    assert [row["configuration"] for row in rows] == [0, 3, 1, 2]  # from fastest to slowest
    assert [row["measured_rank"] for row in rows] == [0.0, 0.33333, 0.66667, 1.0]
    assert [row["predicted_rank"] for row in rows] == [0.5, 0.5, 0.0, 1.0]


def test_predictions_are_bounded_and_span_the_measured_ranking(make_graph: MakeGraph) -> None:
    runtime = np.random.default_rng(0).permutation(1000) + 1
    graph = make_graph(range(1000), runtime.tolist())
    rows = predictions("test", graph, runtime.astype(np.float64))
    assert len(rows) == PREDICTIONS_PER_GRAPH == len({row["configuration"] for row in rows})
    assert (rows[0]["measured_rank"], rows[-1]["measured_rank"]) == (0.0, 1.0)
    assert all(row["predicted_rank"] == row["measured_rank"] for row in rows)
    assert rows == predictions("test", graph, runtime.astype(np.float64))


def layout(*orders: tuple[int, ...]) -> list[int]:
    """Return a row of layouts of output, input and kernel."""
    return [value for order in (*orders, *((),) * (3 - len(orders))) for value in (*order, *(-1,) * (6 - len(order)))]


def test_layouts_are_what_copies_move_and_elements_by_contiguous_dimension(
    make_graph: MakeGraph, tiny_collections: Path
) -> None:
    spec = FeatureStore(tiny_collections / "features/layout/synthetic/random").spec
    spec = spec.model_copy(update={"opcodes": np.array([OPCODES["dot"], OPCODES["reshape"]], dtype=np.uint8)})
    codebook = np.array([layout((0, 1), (0,)), layout((1, 0)), layout((1, 2, 0))], dtype=np.int8)
    sizes = np.zeros((3, 18), dtype=np.float32)
    sizes[0, [0, 1, 6]], sizes[1, :2], sizes[2, :3] = (2, 3, 5), (4, 6), (1, 7, 2)
    configurations = LayoutFeatures(
        node_ids=np.array([0, 1, 2]),
        codebook=codebook,
        sizes=sizes,
        moves=np.array([[0.25, 0, 0], [0.5, 0, 0], [0, 0, 0]], dtype=np.float32),
        tensors=np.zeros((0, 16), dtype=np.int32),
        uses=np.zeros((0, 3), dtype=np.int32),
        codes=np.array([[0, 1, 2], [1, 1, 2]], dtype=np.uint8),
    )
    opcode = np.array([1, 1, 2], dtype=np.uint8)
    graph = replace(make_graph([0, 1], [1, 2]), opcode=opcode, configurations=configurations)
    found = {name: values.tolist() for name, values in properties(graph, np.array([0, 1]), spec).items()}
    assert found == {
        "dot moved": [0.25 + 0.5, 0.5 + 0.5],
        "dot output minor -1": [24, 24 + 24],
        "dot output minor -2": [6, 0],
        "dot input minor -1": [5, 0],
        "reshape output minor -2": [14, 14],  # of three dimensions the second
    }


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_every_configuration_of_a_store_has_properties(tiny_collections: Path, address: str) -> None:
    store = FeatureStore(tiny_collections / "features" / Collection.parse(address).path)
    graph = store.open("valid", store.graphs("valid")[0])
    rows = np.arange(graph.distinct)[::-1]
    found = properties(graph, rows, store.spec)
    assert len(found) > 3
    assert all(values.shape == (graph.distinct,) for values in found.values())
    assert any(" output minor -1" in name or name == "tile[0]" for name in found)
    alone = properties(graph, rows[:1], store.spec)
    assert all(values[0] == alone.get(name, [0])[0] for name, values in found.items())
