"""Numeric columns of nodes, and the extra columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.featurize.columns import node_columns, node_layout
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.files import DataError
from hlorank.hlo.extra import extra_features
from hlorank.hlo.reader import featurize, read_records
from tests.sections import featurize_config


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


def test_features_of_the_official_protobuf(shared_data: Path) -> None:
    (record,) = read_records(shared_data / "official" / "module_tuning_data_layout.pb")
    measured, program = featurize(record)
    options = featurize_config(protobuf=True)
    extra = extra_features(program)
    collection = Collection("layout", "cpu", "random")
    spec = fit_spec(collection, options, [TrainSample.of("a", measured, options, extra)])
    names = [*map(str, range(134)), *spec.extra_columns]
    raw = node_columns(measured.graph, options, extra)
    assert raw.shape == (measured.graph.nodes, len(names)) == (3163, 134 + 85)
    column = names.index("operand_shapes[1][4]")
    np.testing.assert_array_equal(raw[:, column], extra["operand_shapes"][:, 1, 4])
    place = spec.node_columns.columns.tolist().index(column)
    scaled = featurize_graph(measured, spec, extra).node_feat[:, place]
    assert (np.argsort(scaled, kind="stable") == np.argsort(raw[:, column], kind="stable")).all()
    with pytest.raises(DataError, match=r"featurize.protobuf=false"):
        featurize_graph(measured, spec)
