"""Metrics, errors, predictions and properties of one graph."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import (
    PREDICTIONS_PER_GRAPH,
    WRONG,
    mean_effects,
    metric_names,
    noise_width,
    partial_correlations,
    predictions,
    properties,
    report_graph,
    wrong_pairs,
)
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import LayoutFeatures
from hlorank.hlo.node_features import OPCODES
from hlorank.metrics import kendall_tau
from tests.evaluation.conftest import make_graph

# Rows 0 and 3 are one configuration. By score: 2 1 3 2. Of six pairs three agree, two do not, one ties.
ROW_OF, RUNTIME, SCORES = [0, 1, 2, 0], [100, 200, 300, 110], np.array([2.0, 1.0, 3.0, 2.0])


def test_layout_metrics_of_a_graph_with_a_repeated_configuration() -> None:
    report = report_graph("layout", "valid", make_graph(ROW_OF, RUNTIME), SCORES)
    tau, ceiling = (3 - 2) / math.sqrt(6 * 5), 5 / math.sqrt(6 * 5)
    slowdowns = {"slowdown_1": 1.0, "slowdown_5": 0.0, "slowdown_10": 0.0, "slowdown_100": 0.0}
    expected = {"kendall_tau": tau, "repeat_ceiling": ceiling, "opa": 3 / 6, **slowdowns, "kaggle": tau}
    assert {name: report[name] for name in metric_names("layout")} == pytest.approx(expected)
    columns = ("protocol", "nodes", "configurations", "distinct", "note")
    assert [report[name] for name in columns] == ["all", 2, 4, 3, ""]
    # Listed are scores 3 2 2 2, runtimes 300 110 110 100: three pairs agree, none disagrees; ties 3 and 1.
    report = report_graph("layout", "valid", make_graph(ROW_OF, RUNTIME), SCORES, np.array([2, 3, 3, 0]))
    found = [report[name] for name in ("kendall_tau", "opa", "slowdown_1")]
    assert found == pytest.approx([3 / math.sqrt((6 - 3) * (6 - 1)), 3 / 5, 0.1])
    assert [report[name] for name in columns] == ["indexed", 2, 4, 2, "1 of 4 listed indices are repeats"]


def test_tile_metrics_rank_normalised_runtimes() -> None:
    # Labels 1..6, predicted in reverse: the best of the first five is 2, though its runtime is the longest.
    graph = make_graph(range(6), [7, 200, 30, 40, 50, 60], [7, 100, 10, 10, 10, 10])
    report = report_graph("tile", "valid", graph, np.arange(6, 0, -1.0))
    slowdowns = {"slowdown_1": 5.0, "slowdown_5": 1.0, "slowdown_10": 0.0}
    expected = {"kendall_tau": -1.0, "repeat_ceiling": 1.0, "opa": 0.0, **slowdowns, "kaggle": 0.0}
    assert {name: report[name] for name in metric_names("tile")} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row_of", "runtime", "note"),
    [
        ([0, 1], [0, 0], "labels withheld"),
        ([0, 1], [5, 5], "fewer than two distinct runtimes"),
        ([0, 0], [0, 0], "labels withheld; one distinct configuration"),
        ([0], [5], "fewer than two distinct runtimes; one distinct configuration"),
    ],
)
def test_a_graph_with_nothing_to_rank_has_notes_alone(row_of: list[int], runtime: list[int], note: str) -> None:
    report = report_graph("layout", "test", make_graph(row_of, runtime), np.array(row_of, dtype=np.float64))
    assert ({report[name] for name in (*metric_names("layout"), "wrong", *WRONG)}, report["note"]) == ({None}, note)


def test_predictions_are_shares_of_mean_ranks_and_span_the_measured_ranking() -> None:
    measured, shares = [0.0, 0.33333, 0.66667, 1.0], [0.5, 0.5, 0.0, 1.0]
    expected = [  # from fastest to slowest
        {"split": "valid", "graph": "g", "configuration": index, "predicted_rank": share, "measured_rank": rank}
        for index, share, rank in zip((0, 3, 1, 2), shares, measured, strict=True)
    ]
    assert predictions("valid", make_graph(ROW_OF, RUNTIME), SCORES) == expected
    runtime = np.random.default_rng(0).permutation(1000) + 1
    rows = predictions("test", make_graph(range(1000), runtime.tolist()), runtime.astype(np.float64))
    assert len(rows) == PREDICTIONS_PER_GRAPH == len({row["configuration"] for row in rows})
    assert (rows[0]["measured_rank"], rows[-1]["measured_rank"]) == (0.0, 1.0)
    assert all(row["predicted_rank"] == row["measured_rank"] for row in rows)


def layout(*orders: tuple[int, ...]) -> list[int]:
    """Return a row of layouts of output, input and kernel."""
    return [value for order in (*orders, *((),) * (3 - len(orders))) for value in (*order, *(-1,) * (6 - len(order)))]


def test_layouts_are_what_copies_move_and_elements_by_contiguous_dimension(tiny_collections: Path) -> None:
    spec = FeatureStore(tiny_collections / "features/layout/synthetic/random").spec
    spec = spec.model_copy(update={"opcodes": np.array([OPCODES["dot"], OPCODES["reshape"]], dtype=np.uint8)})
    codebook = np.array([layout((0, 1), (0,)), layout((1, 0)), layout((1, 2, 0))], dtype=np.int8)
    sizes = np.zeros((3, 18), dtype=np.float32)
    sizes[0, [0, 1, 6]], sizes[1, :2], sizes[2, :3] = (2, 3, 5), (4, 6), (1, 7, 2)
    configurations = LayoutFeatures(
        node_ids=np.array([0, 1, 2]),
        codebook=codebook,
        sizes=sizes,
        costs=np.array([[0.25, 0, 0], [0.5, 0, 0], [0, 0, 0]], dtype=np.float32),
        tensors=np.zeros((0, 22), dtype=np.int32),
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
    assert any(" output minor -1" in name or name == "tile[0]" for name in found)
    alone = properties(graph, rows[:1], store.spec)
    assert all(values[0] == alone.get(name, [0])[0] for name, values in found.items())


def test_the_noise_width_is_that_of_the_measurements() -> None:
    rng = np.random.default_rng(0)
    for spread_of_runtimes in (rng.normal(0, 0.1, 200), rng.choice([0.0, 2.0], 200) + rng.normal(0, 0.02, 200)):
        halves = spread_of_runtimes + rng.normal(0, 0.01, (2, 200))
        label = np.exp(halves.mean(axis=0))
        noise_of_a_ratio = 0.01 / math.sqrt(2) * math.sqrt(2)  # of the mean of two halves, of two configurations
        assert noise_width(label, kendall_tau(*halves)) == pytest.approx(noise_of_a_ratio, rel=0.15)
    label = np.array([100.0, 100.0, 101.0, 150.0])
    widths = [noise_width(label, tau) for tau in (1.0, 0.999, 0.0, -1.0)]
    assert 0.001 < widths[0] <= min(widths) <= max(widths) < math.inf, "a finite width for every agreement"


def test_wrong_pairs_are_counted_by_noise_widths() -> None:
    label = np.exp([0.0, 0.05, 0.3, 0.6])  # distances 0.5, 2.5, 3, 3, 5.5 and 6 widths of 0.1
    shares = wrong_pairs(np.array([1.0, 0.0, 2.0, 2.0]), label, 0.1)
    expected = dict(zip(("wrong", *WRONG), (1.5 / 6, 1 / 6, 0, 0.5 / 6, 0), strict=True))
    assert shares == pytest.approx(expected)
    assert wrong_pairs(np.array([1.0, 0.0, 2.0, 2.0]), label, None) == {"wrong": 1.5 / 6}
    score, label = np.random.default_rng(0).uniform(1, 2, (2, 60))
    assert wrong_pairs(score, label, None)["wrong"] == pytest.approx((1 - kendall_tau(score, label)) / 2), "no ties"


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_effects_point_at_what_the_model_does_not_see(noise: float) -> None:
    rng = np.random.default_rng(1)
    seen, unseen, overrated, irrelevant = rng.normal(size=(4, 400))
    score = seen + overrated
    runtime = np.exp(0.1 * (seen - 0.5 * unseen + 0.4 * overrated + noise * rng.normal(size=400)))
    known = {"seen": seen, "unseen": unseen, "overrated": overrated, "irrelevant": irrelevant}
    found = partial_correlations(known | {"constant": np.ones(400), "score": 3 * score}, score, runtime)
    assert found.keys() == known.keys()
    assert found["unseen"] < -0.5, "more of it is faster than ranked"
    assert found["overrated"] < -0.2
    assert found["seen"] > 0.2, "the model is a sum in which it weighs too little"
    assert abs(found["irrelevant"]) < 0.1
    score = seen + 0.3 * unseen
    effects = partial_correlations({"seen": seen, "used": unseen}, score, np.exp(score + rng.normal(size=400)))
    assert max(map(abs, effects.values())) < 0.1, "a model that knows all but the noise"


def test_without_a_ranking_the_effects_are_plain_correlations() -> None:
    runtime = np.arange(1.0, 21)
    assert partial_correlations({"faster": -runtime}, np.zeros(20), runtime) == {"faster": pytest.approx(-1)}
    assert partial_correlations({"faster": -runtime}, runtime, runtime) == {}
    assert partial_correlations({"faster": -runtime[:9]}, np.zeros(9), runtime[:9]) == {}, "too few to correlate"


def test_effects_are_means_over_families_of_means_over_graphs() -> None:
    graphs = [("a", {"x": 0.2, "y": 0.1}), ("a", {"x": 0.6}), ("b", {"x": -0.2}), ("b", {}), ("c", {"x": 0.7})]
    assert mean_effects(graphs) == [
        {"property": "x", "effect": pytest.approx(0.3), "families": 3, "agreeing": 2, "graphs": 4},
        {"property": "y", "effect": pytest.approx(0.1), "families": 1, "agreeing": 1, "graphs": 1},
    ]
