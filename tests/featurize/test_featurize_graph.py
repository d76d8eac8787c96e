"""Featurization of one graph: pruning, columns of nodes, distinct configurations, distances."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hlorank.config import FeaturizeConfig
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.graph import Graph, Int64
from hlorank.featurize.columns import node_layout
from hlorank.featurize.features import LayoutFeatures, TileFeatures, column_blocks, distances, distinct_rows
from hlorank.featurize.featurize_graph import featurize_graph, prune
from hlorank.files import DataError
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.serialization import input_sizes
from tests.featurize.small_graphs import fitted, layout_graph, tile_graph
from tests.sections import featurize_config

PLAIN = featurize_config()
ONE = featurize_config(prune_hops=1)
EDGES = featurize_config(prune_hops=1, prune_edges=True)


def layouts(graph: Graph, node_ids: list[int] | Int64) -> MeasuredGraph:
    """Return the graph with one configuration of the given nodes."""
    values = np.full((1, len(node_ids), 18), -1)
    parts = LayoutConfigurations.from_chunks(np.array(node_ids, dtype=np.int64), [values])
    return MeasuredGraph("graph", graph, parts, Measurements(np.array([1000])))


def graph_of(nodes: int, edges: list[tuple[int, int]], splits: list[int]) -> Graph:
    """Make a graph whose first feature is the number of the node plus 1."""
    feat = np.zeros((nodes, 140), dtype=np.float32)
    feat[:, 0] = np.arange(1, nodes + 1)
    rows = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return Graph(feat, np.arange(1, nodes + 1).astype(np.uint8), rows, np.array(splits))


@st.composite
def measured_graphs(draw: st.DrawFn) -> MeasuredGraph:
    nodes = draw(st.integers(2, 40))
    pairs = st.tuples(st.integers(1, nodes - 1), st.integers(0, nodes - 2)).filter(lambda pair: pair[0] > pair[1])
    edges = draw(st.lists(pairs, max_size=2 * nodes))
    splits = draw(st.sets(st.integers(1, nodes - 1), max_size=4))
    node_ids = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=4))
    return layouts(graph_of(nodes, edges, sorted({0, nodes} | splits)), sorted(node_ids))


def test_only_edges_that_touch_configurable_nodes() -> None:
    edges = [(2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 1), (6, 3), (6, 4), (6, 5), (7, 6), (7, 0)]
    measured = layouts(graph_of(8, edges, [0, 8]), [2])
    assert prune(measured, ONE).edge_index.tolist() == [[2, 0], [2, 1], [3, 2], [4, 0], [4, 2]]
    pruned = prune(measured, EDGES)
    assert pruned.kept.tolist() == [0, 1, 2, 3, 4]
    assert pruned.edge_index.tolist() == [[2, 0], [2, 1], [3, 2], [4, 2]]  # not from 0, an operand of 2, to 4
    whole = prune(measured, PLAIN.model_copy(update={"prune_edges": True}))
    assert whole.edge_index.tolist() == pruned.edge_index.tolist()
    assert len(whole.kept) == 8


@given(measured_graphs(), st.builds(featurize_config, prune_hops=st.integers(0, 3), prune_edges=st.booleans()))
@settings(max_examples=60)
def test_kept_nodes_edges_and_computations(measured: MeasuredGraph, options: FeaturizeConfig) -> None:
    graph, configurations = measured.graph, measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    assert options.prune_hops is not None
    pruned = prune(measured, options)
    distance = distances(graph.edge_index, graph.nodes, configurations.node_ids)
    keep = (distance >= 0) & (distance <= options.prune_hops)
    kept_edges = np.isin(graph.edge_index, configurations.node_ids).any(axis=1) | (not options.prune_edges)
    assert pruned.kept.tolist() == np.flatnonzero(keep).tolist()
    assert (pruned.node_of[~keep] == -1).all()
    inside = keep[graph.edge_index].all(axis=1) & kept_edges
    assert pruned.kept[pruned.edge_index].tolist() == graph.edge_index[inside].tolist()
    # Blocks of node_splits are those of the original nodes.
    before, after = (
        np.searchsorted(splits, nodes, side="right")
        for splits, nodes in ((graph.node_splits, pruned.kept), (pruned.node_splits, np.arange(len(pruned.kept))))
    )
    np.testing.assert_array_equal(np.unique(before, return_inverse=True)[1] + 1, after)


@pytest.mark.parametrize(
    ("options", "nodes", "edges"),
    # The configurable nodes and their direct neighbours, as counted by the winner of the Kaggle competition.
    [(PLAIN, 3163, 5112), (ONE, 223, 219), (EDGES, 223, 181)],
)
def test_pruning_of_a_real_graph(shared_data: Path, options: FeaturizeConfig, nodes: int, edges: int) -> None:
    path = shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
    pruned = prune(read_graph(path, "layout", first=1), options)
    assert (len(pruned.kept), len(pruned.edge_index)) == (nodes, edges)


def test_layout_features() -> None:
    measured = layout_graph(configurations=12)
    configurations = measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    features = featurize_graph(measured, fitted("layout:xla:random", measured))
    parts = features.configurations
    assert isinstance(parts, LayoutFeatures)
    # Every third configuration repeats the first.
    assert features.row_of.tolist() == [0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8]
    assert features.distinct == 9
    np.testing.assert_array_equal(parts.codebook[parts.codes][features.row_of], configurations.values())
    assert parts.codes.dtype == np.uint8
    assert parts.sizes.shape == parts.codebook.shape
    assert parts.sizes.dtype == np.float32
    first = measured.graph.node_feat[configurations.node_ids, 21]
    minor = parts.codebook[parts.codes, 0]
    np.testing.assert_array_equal(
        parts.sizes[parts.codes, 0][minor == 0], np.broadcast_to(first, minor.shape)[minor == 0]
    )
    np.testing.assert_array_equal(features.runtime, measured.measurements.runtime)
    assert features.normalizer is None
    np.testing.assert_array_equal(features.edge_index, measured.graph.edge_index)
    np.testing.assert_allclose(features.node_feat.mean(axis=0), 0, atol=1e-5)
    indices, labels = features.targets()
    assert indices.tolist() == list(range(9))
    assert labels[0] == np.median(measured.measurements.runtime[::3])
    arrays = {**vars(features), **vars(parts)}.values()
    assert all(array.flags.c_contiguous for array in arrays if isinstance(array, np.ndarray))


def test_of_a_tpu_models_read_padding_and_of_operands_no_layouts_if_so_configured() -> None:
    measured, derived = layout_graph(configurations=9), ["layout_costs"]
    given = cast("LayoutConfigurations", measured.configurations)
    values = given.values(slice(None)).copy()
    values[..., 6:12] = values[..., :6]
    measured = replace(measured, configurations=LayoutConfigurations.from_chunks(given.node_ids, [values]))
    whole, alone = (
        featurize_graph(measured, fitted("layout:tpu-v3:random", measured, derived=derived, operand_layouts=read))
        for read in (True, False)
    )
    other = featurize_graph(measured, fitted("layout:cpu:random", measured, derived=derived))
    of_tpu, outputs, of_cpu = (cast("LayoutFeatures", graph.configurations) for graph in (whole, alone, other))
    assert len(whole.row_of) == len(alone.row_of)
    np.testing.assert_array_equal(whole.row_of, alone.row_of)
    assert (of_tpu.codebook[:, 6:] != -1).any()
    assert (outputs.codebook[:, 6:] == -1).all()
    np.testing.assert_array_equal(of_tpu.codebook[of_tpu.codes][..., :6], outputs.codebook[outputs.codes][..., :6])
    assert not outputs.costs[:, 1].any()
    assert not np.array_equal(of_tpu.costs[of_tpu.codes], of_cpu.costs[of_cpu.codes])
    spec = fitted("layout:tpu-v3:random", measured, derived=derived)
    assert len(np.unique(PooledGraph(whole, input_sizes(spec)).costs(np.arange(whole.distinct)))) > 1


def test_tile_features() -> None:
    measured = tile_graph(configurations=9)
    spec = fitted("tile:xla", measured, prune_hops=1, prune_edges=True)  # options of layouts
    features = featurize_graph(measured, spec)
    parts = features.configurations
    assert isinstance(parts, TileFeatures)
    np.testing.assert_array_equal(features.edge_index, measured.graph.edge_index)
    assert features.nodes == 6
    assert features.row_of.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert spec.tile_columns is not None
    assert spec.tile_columns.columns.tolist() == list(range(16))  # input bounds are constant
    assert parts.feat.shape == (8, 16)
    assert spec.tile_columns.logarithmic.tolist() == [column == 7 for column in range(16)]
    np.testing.assert_array_equal(features.normalizer, measured.measurements.normalizer)
    assert len(features.targets()[0]) == 9


def test_sizes_of_operands_that_are_pruned_remain() -> None:
    measured = layout_graph(nodes=80)
    node_ids = measured.graph.edge_index[-1:, 0]
    values = np.full((12, 1, 18), -1)
    values[:, 0, 6] = 0  # of the first operand
    measured = replace(measured, configurations=LayoutConfigurations.from_chunks(node_ids, [values]))
    pruned = featurize_graph(measured, fitted("layout:xla:random", measured, prune_hops=0))
    whole = featurize_graph(measured, fitted("layout:xla:random", measured))
    assert pruned.nodes == len(pruned.node_feat) == pruned.node_splits[-1] == 1
    np.testing.assert_array_equal(pruned.node_layout, whole.node_layout[node_ids])
    assert isinstance(pruned.configurations, LayoutFeatures)
    operands = measured.graph.edge_index[measured.graph.edge_index[:, 0] == node_ids[0], 1]
    (sizes,) = pruned.configurations.sizes
    assert sizes[6] in measured.graph.node_feat[operands, 21]
    assert sizes[6] > 0


def test_an_unknown_opcode_has_index_0() -> None:
    measured = layout_graph()
    spec = fitted("layout:xla:random", measured)
    opcodes = measured.graph.node_opcode.copy()
    opcodes[:2] = 0, 120
    features = featurize_graph(replace(measured, graph=replace(measured.graph, node_opcode=opcodes)), spec)
    assert features.opcode[:2].tolist() == [0, 0]
    np.testing.assert_array_equal(spec.opcodes[features.opcode[2:].astype(int) - 1], opcodes[2:])


def test_the_other_kind_is_refused() -> None:
    layout, tile = layout_graph(), tile_graph()
    for measured, spec in ((layout, fitted("tile:xla", tile)), (tile, fitted("layout:xla:random", layout))):
        with pytest.raises(DataError, match=str(spec.collection)):
            featurize_graph(measured, spec)


@pytest.mark.parametrize(
    ("path", "configurations", "distinct", "codebook"),
    [
        ("layout/xla/default/train/unet3d.npz", 1159, 681, 190),
        ("layout/xla/default/valid/unet_3d.4x4.bf16.npz", 1965, 1469, 196),
        ("layout/xla/random/train/openai_v0_rnn_optimized.npz", 20, 1, 35),
    ],
)
def test_real_layouts(shared_data: Path, path: str, configurations: int, distinct: int, codebook: int) -> None:
    measured = read_graph(shared_data / "tpugraphs/npz" / path, "layout")
    features = featurize_graph(measured, fitted("layout:xla:default", measured))
    assert len(features.row_of) == configurations
    assert features.distinct == distinct
    assert isinstance(features.configurations, LayoutFeatures)
    assert len(features.configurations.codebook) == codebook
    assert features.configurations.codes.dtype == np.uint8
    # Every dimension that a layout names has a size, so the operands are in the right order.
    np.testing.assert_array_equal(features.configurations.sizes > 0, features.configurations.codebook >= 0)
    # Every tensor of rank 1 and more has a layout in the real files.
    rank = (measured.graph.node_feat[:, 21:27] > 0).sum(axis=1)
    assert ((features.node_layout >= 0).sum(axis=1) == rank).all()
    assert np.isfinite(features.node_feat).all()


def raw_nodes(*nodes: tuple[list[int], list[int]]) -> np.ndarray:
    """Make node features with the given dimensions and minor_to_major."""
    feat = np.zeros((len(nodes), 140), dtype=np.float32)
    for row, (dims, layout) in zip(feat, nodes, strict=True):
        row[21 : 21 + min(len(dims), 6)] = dims[:6]
        row[27], row[28] = sum(dims), np.prod(dims)
        row[134 : 134 + min(len(layout), 6)] = layout[:6]
    return feat


@pytest.mark.parametrize(
    ("dims", "layout", "expected"),
    [
        ([], [], []),  # a scalar or a tuple
        ([5], [0], [0]),
        ([5, 7], [1, 0], [1, 0]),
        ([5, 7], [0, 1], [0, 1]),
        ([1, 1, 9], [2, 0, 1], [2, 0, 1]),
        ([2] * 6, [5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0]),
        ([5, 7], [0, 0], []),  # not captured
        ([5, 7, 9], [1, 0, 0], []),  # no permutation
        ([5], [1], []),
        ([5, 0], [1, 0], [1, 0]),  # empty tensors: a size of 0 cannot be distinguished from padding
        ([0, 5], [1, 0], [1, 0]),
        ([3, 0, 4], [2, 1, 0], [2, 1, 0]),
        ([5, 0], [0, 0], []),
        ([2] * 7, [6, 5, 4, 3, 2, 1, 0], []),  # more dimensions than columns
    ],
)
def test_node_layout(dims: list[int], layout: list[int], expected: list[int]) -> None:
    with_layouts = raw_nodes((dims, layout), ([4, 4], [1, 0]))
    result = node_layout(with_layouts)
    assert result.dtype == np.int8
    assert result.tolist() == [expected + [-1] * (6 - len(expected)), [1, 0, -1, -1, -1, -1]]


def test_a_graph_without_layouts_has_none() -> None:
    # Never 0, -1, ...: the layout of a vector cannot be distinguished from padding.
    assert (node_layout(raw_nodes(([5], []), ([5, 7], []), ([], []))) == -1).all()


VALUES: list[tuple[Any, list[float]]] = [
    (np.uint8, [0, 1, 2]),
    (np.int64, [0, 2**40]),
    (np.float32, [0.0, -0.0, 1.0, 1.0 + 2**-23]),
]
ROWS = st.sampled_from(VALUES).flatmap(
    lambda kind: hnp.arrays(
        kind[0], st.tuples(st.integers(0, 12), st.integers(0, 3)), elements=st.sampled_from(kind[1])
    )
)


@given(rows=ROWS)
@settings(max_examples=60)
def test_distinct_rows_agree_with_a_loop_in_any_memory_order(rows: NDArray[Any]) -> None:
    plain = [tuple(row) for row in rows.tolist()]
    order = list(dict.fromkeys(plain))
    first, inverse = distinct_rows(np.asfortranarray(np.hstack([rows, rows]))[:, : rows.shape[1]])
    assert first.tolist() == [plain.index(row) for row in order]
    assert inverse.tolist() == [order.index(row) for row in plain]
    assert first.dtype == inverse.dtype == np.int64


def test_memory_is_linear_in_the_distinct_rows() -> None:
    rows = np.random.default_rng(0).integers(0, 14, (16_000, 200), dtype=np.uint8)
    peaks = []
    for part in (rows[:2_000], rows):
        tracemalloc.start()
        assert len(distinct_rows(part)[0]) == len(part)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < min(8.5 * peaks[0], 3 * rows.nbytes)


@pytest.mark.parametrize(("block_bytes", "widths"), [(1, [1] * 5), (24, [2, 2, 1]), (10**9, [5])])
def test_columns_are_read_in_blocks(block_bytes: int, widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.featurize.features._BLOCK_BYTES", block_bytes)
    array = np.arange(30, dtype=np.uint16).reshape(6, 5)
    parts, blocks = zip(*column_blocks(array), strict=True)
    assert [len(block) for block in blocks] == widths
    assert all(block.flags.c_contiguous for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), array.T)
    np.testing.assert_array_equal(np.concatenate([array[:, part] for part in parts], axis=1), array)
    assert list(column_blocks(array[:, :0])) == []


@pytest.mark.parametrize(
    ("sources", "expected"), [([2], [2, 1, 0, 1, -1, -1]), ([0, 4], [0, 1, 2, 3, 0, 1]), ([], [-1] * 6)]
)
def test_distances_over_edges_of_either_direction(sources: list[int], expected: list[int]) -> None:
    edges = np.array([[1, 0], [2, 1], [3, 2], [2, 1], [5, 4]])
    assert distances(edges, 6, np.array(sources, dtype=np.int64)).tolist() == expected
