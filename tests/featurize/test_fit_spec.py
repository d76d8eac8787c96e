"""Fitting on the train split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.data.graph import MeasuredGraph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.files import DataError
from tests.sections import featurize_options

MakeGraph = Callable[..., MeasuredGraph]

COLLECTION = Collection("layout", "xla", "random")
OPTIONS = featurize_options(opcode_width=6)


def sample(measured: MeasuredGraph) -> TrainSample:
    return TrainSample.of(measured.name, measured, OPTIONS)


def test_columns_and_opcodes_of_all_graphs_count(layout_graph: MakeGraph) -> None:
    graphs = [layout_graph(seed=seed) for seed in (0, 1)]
    spec = fit_spec(COLLECTION, OPTIONS, map(sample, graphs))
    feat = np.concatenate([graph.graph.node_feat for graph in graphs])[:, :134]
    span = feat.max(axis=0) - feat.min(axis=0)
    # Column 1 is constant; layouts (134 and up) and the opcode are categories, no numbers.
    assert spec.node_columns.columns.tolist() == np.flatnonzero(span > 0).tolist()
    assert 1 not in spec.node_columns.columns
    assert spec.node_columns.logarithmic.tolist() == (span[span > 0] > 100).tolist()
    plain = ~spec.node_columns.logarithmic
    np.testing.assert_allclose(spec.node_columns.center[plain], feat.mean(axis=0)[span > 0][plain], rtol=1e-5)
    assert spec.opcodes.tolist() == [2, 26, 34, 63, 75]
    assert spec.tile_columns is None


def test_the_embedding_has_a_row_for_unknown_opcodes(layout_graph: MakeGraph) -> None:
    spec = fit_spec(COLLECTION, OPTIONS, [sample(layout_graph())])
    assert spec.opcode_embedding.shape == (6, 6)
    assert not spec.opcode_embedding[0].any()
    assert spec.opcode_embedding[1:].any(axis=1).all()


def test_layout_configurations_and_runtimes_play_no_role(layout_graph: MakeGraph) -> None:
    measured, other = layout_graph(), layout_graph(seed=1, configurations=3)
    changed = replace(other, graph=measured.graph)
    one, two = (fit_spec(COLLECTION, OPTIONS, [sample(graph)]) for graph in (measured, changed))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != fit_spec(COLLECTION, OPTIONS, [sample(other)]).fingerprint


def test_inputs_tell_what_it_was_fitted_on(layout_graph: MakeGraph) -> None:
    one, same, other = (
        fit_spec(COLLECTION, OPTIONS, [TrainSample.of(source, layout_graph(), OPTIONS)]) for source in "aab"
    )
    assert one.inputs == same.inputs != other.inputs
    assert one.fingerprint == other.fingerprint  # the content is the same


def test_no_graph_is_an_error() -> None:
    with pytest.raises(DataError, match="at least one graph of layout:xla:random to fit statistics on, found none"):
        fit_spec(COLLECTION, OPTIONS, [])
