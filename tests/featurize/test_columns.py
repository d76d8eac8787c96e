"""Numeric columns of nodes, and the extra columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.config import parse
from hlorank.data.collection import Collection
from hlorank.data.configurations import MeasuredGraph
from hlorank.data.graph import Graph
from hlorank.featurize import columns
from hlorank.featurize.columns import node_columns, return_probabilities
from hlorank.featurize.feature_spec import FeatureSpec, extra_columns
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.files import DataError
from hlorank.hlo.extra import extra_features
from hlorank.hlo.reader import featurize, read_records
from tests.sections import featurize_config

MakeGraph = Callable[..., MeasuredGraph]

PLAIN = featurize_config()
LAYOUT = Collection("layout", "cpu", "random")


def graph_of(*edges: tuple[int, int], nodes: int) -> Graph:
    return Graph(
        np.zeros((nodes, 140), dtype=np.float32),
        np.ones(nodes, dtype=np.uint8),
        np.array(edges, dtype=np.int64).reshape(-1, 2),
        np.array([0, nodes]),
    )


def reference_walks(graph: Graph, steps: int) -> NDArray[np.float64]:
    """Compute return probabilities as dense powers of the transition matrix."""
    adjacency = np.zeros((graph.nodes, graph.nodes))
    for u, v in graph.edge_index:
        adjacency[u, v] = adjacency[v, u] = 1
    transition = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    return np.stack([np.diag(np.linalg.matrix_power(transition, k)) for k in range(1, steps + 1)], axis=1)


def test_return_probabilities_of_small_graphs() -> None:
    star = graph_of((1, 0), (2, 0), (3, 0), nodes=5)  # three leaves around node 0, and a node without edges
    third = [0, 1 / 3, 0, 1 / 3]
    expected = np.array([[0, 1, 0, 1], third, third, third, [0] * 4])
    np.testing.assert_allclose(return_probabilities(star, 4), expected)
    triangle = graph_of((1, 0), (2, 0), (2, 1), (2, 1), nodes=3)  # one edge is given twice
    np.testing.assert_allclose(return_probabilities(triangle, 3), [[0, 1 / 2, 1 / 4]] * 3)


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
@pytest.mark.parametrize("entries", [1, 100, 2**22])
@pytest.mark.parametrize("filled", [0.0, 0.3, 1.0])
def test_blocks_of_walks_equal_dense_powers(
    steps: int, entries: int, filled: float, layout_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = layout_graph(seed=3).graph
    monkeypatch.setattr(columns, "_BLOCK_ENTRIES", entries)
    monkeypatch.setattr(columns, "_FILLED", filled)
    np.testing.assert_allclose(return_probabilities(graph, steps), reference_walks(graph, steps), atol=1e-15)


def test_without_options_the_columns_are_the_raw_ones(layout_graph: MakeGraph) -> None:
    graph = layout_graph().graph
    assert extra_columns(PLAIN) == []
    np.testing.assert_array_equal(node_columns(graph, PLAIN, None), graph.node_feat[:, :134])


def test_dimensions_mod_and_div_128() -> None:
    graph = graph_of(nodes=1)
    graph.node_feat[0, 21:27] = [127, 128, 300, 0, 1, 2**24]
    options = featurize_config(dims_128=True)
    found = node_columns(graph, options, None)[0, 134:].tolist()
    assert found == [127, 0, 44, 0, 1, 0, 0, 1, 2, 0, 0, 2**17]
    assert extra_columns(options)[2] == "dims[2] mod 128"
    assert extra_columns(options)[8] == "dims[2] div 128"


def test_extra_columns_are_named_scaled_and_appended(layout_graph: MakeGraph) -> None:
    measured = layout_graph(seed=1)
    options = featurize_config(walk_steps=4)
    plain = fit_spec(LAYOUT, PLAIN, [TrainSample.of("a", measured, PLAIN)])
    spec = fit_spec(LAYOUT, options, [TrainSample.of("a", measured, options)])
    kept = len(plain.node_columns.columns)
    assert spec.node_columns.columns[kept:].tolist() == [135, 136, 137]  # no walk is back after one step: constant
    values = spec.model_dump(mode="json")
    assert values["extra_columns"] == [f"return_probability[{k}]" for k in (1, 2, 3, 4)]
    assert parse(FeatureSpec, values).fingerprint == spec.fingerprint
    without, features = featurize_graph(measured, plain), featurize_graph(measured, spec)
    np.testing.assert_array_equal(features.node_feat[:, :kept], without.node_feat)
    np.testing.assert_allclose(features.node_feat[:, kept:].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.node_feat[:, kept:].std(axis=0), 1, atol=1e-6)


def test_walks_leave_the_nodes_that_pruning_keeps(layout_graph: MakeGraph) -> None:
    measured = layout_graph(seed=1)
    options = featurize_config(prune_hops=0, walk_steps=4)
    configurations: object = measured.configurations
    sample = TrainSample.of("a", measured, options)
    walks = return_probabilities(measured.graph, 4).astype(np.float32)
    np.testing.assert_array_equal(sample.node_columns[:, 134:], walks[vars(configurations)["node_ids"]])
    assert len(featurize_graph(measured, fit_spec(LAYOUT, options, [sample])).node_feat) == len(sample.node_columns)


def test_features_of_the_official_protobuf(shared_data: Path) -> None:
    (record,) = read_records(shared_data / "official" / "module_tuning_data_layout.pb")
    measured, program = featurize(record)
    options = featurize_config(protobuf=True)
    extra = extra_features(program)
    spec = fit_spec(LAYOUT, options, [TrainSample.of("a", measured, options, extra)])
    names = [*map(str, range(134)), *extra_columns(options)]
    raw = node_columns(measured.graph, options, extra)
    assert raw.shape == (measured.graph.nodes, len(names)) == (3163, 134 + 85)
    column = names.index("operand_shapes[1][4]")
    np.testing.assert_array_equal(raw[:, column], extra["operand_shapes"][:, 1, 4])
    place = spec.node_columns.columns.tolist().index(column)
    scaled = featurize_graph(measured, spec, extra).node_feat[:, place]
    assert (np.argsort(scaled, kind="stable") == np.argsort(raw[:, column], kind="stable")).all()
    with pytest.raises(DataError, match=r"featurize.protobuf=false"):
        featurize_graph(measured, spec)
