"""Featurization of one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import parse
from hlorank.data.collection import Collection, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, TileConfigurations
from hlorank.featurize.columns import node_layout
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE, FeatureSpec
from hlorank.featurize.features import LayoutFeatures, TileFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.featurize.reduce import reduction
from hlorank.files import DataError
from tests.sections import featurize_config

MakeGraph = Callable[..., MeasuredGraph]


def fitted(
    address: str, *graphs: MeasuredGraph, prune_hops: int | None = None, virtual_nodes: bool = False
) -> FeatureSpec:
    options = featurize_config(prune_hops=prune_hops, virtual_nodes=virtual_nodes)
    return fit_spec(
        Collection.parse(address), options, [TrainSample.of(graph.name, graph, options) for graph in graphs]
    )


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


def test_node_layouts_of_generated_graphs_are_permutations(layout_graph: MakeGraph) -> None:
    feat = layout_graph(nodes=200).graph.node_feat
    layouts = node_layout(feat)
    rank = (feat[:, 21:27] > 0).sum(axis=1)
    assert ((layouts >= 0).sum(axis=1) == rank).all()
    for layout, length in zip(layouts, rank, strict=True):
        assert sorted(layout[:length]) == list(range(length))


def test_layout_features(layout_graph: MakeGraph) -> None:
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


def test_tile_features(tile_graph: MakeGraph) -> None:
    measured = tile_graph(configurations=9)
    spec = fitted("tile:xla", measured)
    features = featurize_graph(measured, spec)
    parts = features.configurations
    assert isinstance(parts, TileFeatures)
    assert features.row_of.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert spec.tile_columns is not None
    assert spec.tile_columns.columns.tolist() == list(range(16))  # input bounds are constant
    assert parts.feat.shape == (8, 16)
    assert spec.tile_columns.logarithmic.tolist() == [column == 7 for column in range(16)]
    np.testing.assert_array_equal(features.normalizer, measured.measurements.normalizer)
    assert len(features.targets()[0]) == 9


def test_tiles_that_differ_in_a_dropped_column_remain_distinct(tile_graph: MakeGraph) -> None:
    train, other = tile_graph(), tile_graph(name="other")
    feat = np.zeros((3, 24), dtype=np.float32)
    feat[1, 20] = 4
    other = replace(
        other,
        configurations=TileConfigurations(feat),
        measurements=replace(
            other.measurements,
            runtime=other.measurements.runtime[:3],
            normalizer=np.ones(3, dtype=np.int64),
        ),
    )
    assert featurize_graph(other, fitted("tile:xla", train)).row_of.tolist() == [0, 1, 0]


def test_pruned_features(layout_graph: MakeGraph) -> None:
    measured = layout_graph(nodes=80)
    configurations = measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    whole = featurize_graph(measured, fitted("layout:xla:random", measured))
    pruned = featurize_graph(measured, fitted("layout:xla:random", measured, prune_hops=0))
    parts = pruned.configurations
    assert isinstance(parts, LayoutFeatures)
    # Only the configurable nodes remain, with their configurations.
    assert parts.node_ids.tolist() == list(range(len(configurations.node_ids)))
    np.testing.assert_array_equal(pruned.node_layout, whole.node_layout[configurations.node_ids])
    np.testing.assert_array_equal(parts.codebook[parts.codes][pruned.row_of], configurations.values())
    assert pruned.node_splits[-1] == pruned.nodes == len(pruned.node_feat) == len(configurations.node_ids)
    # Statistics are computed on the remaining nodes.
    np.testing.assert_allclose(pruned.node_feat.mean(axis=0), 0, atol=1e-5)


def test_sizes_of_operands_that_are_pruned_remain(layout_graph: MakeGraph) -> None:
    measured = layout_graph(nodes=80)
    node_ids = measured.graph.edge_index[-1:, 0]
    values = np.full((12, 1, 18), -1)
    values[:, 0, 6] = 0  # of the first operand
    measured = replace(measured, configurations=LayoutConfigurations.from_chunks(node_ids, [values]))
    pruned = featurize_graph(measured, fitted("layout:xla:random", measured, prune_hops=0))
    assert pruned.nodes == 1
    assert isinstance(pruned.configurations, LayoutFeatures)
    operands = measured.graph.edge_index[measured.graph.edge_index[:, 0] == node_ids[0], 1]
    (sizes,) = pruned.configurations.sizes
    assert sizes[6] in measured.graph.node_feat[operands, 21]
    assert sizes[6] > 0


def test_virtual_nodes(layout_graph: MakeGraph) -> None:
    measured = layout_graph(nodes=80)
    configurations = measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    spec = fitted("layout:xla:random", measured, prune_hops=0, virtual_nodes=True)
    values = spec.model_dump(mode="json")
    assert parse(FeatureSpec, values).model_dump(mode="json") == values
    reduced = reduction(measured, spec.options)
    features = featurize_graph(measured, spec)
    assert features.virtual_nodes == reduced.virtual.sum() > 0

    # Virtual nodes have a separate opcode, which is embedded like any other, and no layout.
    assert spec.opcodes[-1] == VIRTUAL_OPCODE == 121
    np.testing.assert_array_equal(features.opcode == len(spec.opcodes), reduced.virtual)
    assert spec.opcode_embedding[-1].any()
    assert (features.node_layout[reduced.virtual] == -1).all()
    np.testing.assert_array_equal(
        features.node_layout[~reduced.virtual], node_layout(measured.graph.node_feat)[reduced.first[~reduced.virtual]]
    )

    # The last column counts the nodes merged; the others are sums, scaled as fitted on sums.
    assert spec.extra_columns == ["merged"]
    transform = spec.node_columns
    assert transform.columns[-1] == 134
    np.testing.assert_allclose(
        features.node_feat[:, -1] * transform.scale[-1] + transform.center[-1], reduced.merged, rtol=1e-5
    )
    np.testing.assert_allclose(features.node_feat.mean(axis=0), 0, atol=1e-5)
    plain = ~transform.logarithmic[:-1]
    raw = np.add.reduceat(measured.graph.node_feat[:, transform.columns[:-1][plain]], reduced.first, axis=0)
    scaled = (raw - transform.center[:-1][plain]) / transform.scale[:-1][plain]
    np.testing.assert_allclose(features.node_feat[:, :-1][:, plain], scaled, rtol=1e-4, atol=1e-5)

    parts = features.configurations
    assert isinstance(parts, LayoutFeatures)
    np.testing.assert_array_equal(reduced.first[parts.node_ids], configurations.node_ids)
    np.testing.assert_array_equal(parts.codebook[parts.codes][features.row_of], configurations.values())


def test_virtual_nodes_are_unknown_if_train_had_none(layout_graph: MakeGraph) -> None:
    spec = fitted("layout:xla:random", layout_graph(nodes=8), prune_hops=9, virtual_nodes=True)
    assert spec.opcodes[-1] != VIRTUAL_OPCODE
    measured = layout_graph(seed=4, nodes=200)
    measured = replace(measured, graph=replace(measured.graph, edge_index=np.zeros((0, 2), dtype=np.int64)))
    features = featurize_graph(measured, spec)
    virtual = reduction(measured, spec.options).virtual
    assert (features.opcode[virtual] == 0).all()
    assert virtual.any()


def test_rows_are_contiguous(layout_graph: MakeGraph, tile_graph: MakeGraph) -> None:
    for address, measured in (("layout:xla:random", layout_graph()), ("tile:xla", tile_graph())):
        features = featurize_graph(measured, fitted(address, measured))
        arrays = {**vars(features), **vars(features.configurations)}
        assert all(array.flags.c_contiguous for array in arrays.values() if isinstance(array, np.ndarray))


def test_an_unknown_opcode_has_index_0(layout_graph: MakeGraph) -> None:
    measured = layout_graph()
    spec = fitted("layout:xla:random", measured)
    opcodes = measured.graph.node_opcode.copy()
    opcodes[:2] = 0, 120
    changed = replace(measured, graph=replace(measured.graph, node_opcode=opcodes))
    features = featurize_graph(changed, spec)
    assert features.opcode[:2].tolist() == [0, 0]
    np.testing.assert_array_equal(spec.opcodes[features.opcode[2:].astype(int) - 1], opcodes[2:])


def test_the_other_kind_is_refused(layout_graph: MakeGraph, tile_graph: MakeGraph) -> None:
    layout, tile = layout_graph(), tile_graph()
    with pytest.raises(DataError, match=r"tile:xla.*LayoutConfigurations"):
        featurize_graph(layout, fitted("tile:xla", tile))
    with pytest.raises(DataError, match=r"layout:xla:random.*TileConfigurations"):
        featurize_graph(tile, fitted("layout:xla:random", layout))


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
    named = features.configurations.codebook >= 0
    np.testing.assert_array_equal(features.configurations.sizes > 0, named)
    # Every tensor of rank 1 and more has a layout in the real files.
    rank = (measured.graph.node_feat[:, 21:27] > 0).sum(axis=1)
    assert ((features.node_layout >= 0).sum(axis=1) == rank).all()
    assert np.isfinite(features.node_feat).all()


@pytest.mark.parametrize(
    ("path", "configurations", "distinct"),
    [
        ("train/retinanet.2x2.fp32_-342c949e14733d96.npz", 2, 1),
        ("valid/inception_v3_batch_128_train_426e203f19335d17.npz", 9, 8),
        ("test/d6f5f54247bd1e58a10b9e7062c636ab.npz", 25, 1),
    ],
)
def test_real_tiles(shared_data: Path, path: str, configurations: int, distinct: int) -> None:
    measured = read_graph(shared_data / "tpugraphs/npz/tile/xla" / path, "tile")
    features = featurize_graph(measured, fitted("tile:xla", measured))
    assert len(features.row_of) == configurations
    assert features.distinct == distinct
