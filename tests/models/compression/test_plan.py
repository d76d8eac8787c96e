"""Plans of tiny segments: known indices, work and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hlorank.models.compression.build_plan import dense_states
from hlorank.models.compression.plan import QuotientEdges, QuotientGraph, QuotientPieces, Sparse
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs

MakeModel = Callable[..., CostModel]
MakeInputs = Callable[..., GraphInputs]


def test_the_work_is_the_states_of_layers_that_mix(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(block=["layer_norm", "sage", "gelu"], blocks=2), make_inputs()
    plan = graph.plan({0: np.arange(5)}, model.recipe)
    graphs = [index for index in plan.steps if isinstance(index, QuotientGraph)]
    assert plan.states == sum(len(index.matrix.row_starts) for index in graphs)
    dense = graph.plan({0: np.arange(5)}, replace(model.recipe, compress=False, deduplicate=False))
    assert dense.states == 2 * 24 * 5 == dense_states(model.recipe, graph.segments[0], 5)
    assert plan.states < dense.states


@pytest.mark.parametrize(
    ("layer", "form"), [("sage", QuotientGraph), ("GINConv", QuotientEdges), ("gatv2", QuotientPieces)]
)
def test_edges_are_in_the_form_that_the_layer_reads(
    layer: str, form: type, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=[layer], blocks=1), make_inputs()
    assert sum(isinstance(index, form) for index in graph.plan({0: np.arange(4)}, model.recipe).steps) == 1


def matrices(value: object) -> list[Sparse[np.ndarray]]:
    """Return the sparse matrices in nested tuples."""
    if isinstance(value, Sparse):
        return [value]
    return [matrix for part in value for matrix in matrices(part)] if isinstance(value, tuple) else []


def test_only_gradients_need_columns(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs()
    ours, theirs = (
        matrices(graph.plan({0: np.arange(4)}, replace(model.recipe, gradients=gradients)))
        for gradients in (True, False)
    )
    assert len(ours) > 4
    for one, other in zip(ours, theirs, strict=True):
        assert other.row is other.column_starts is other.column_weight is None
        np.testing.assert_array_equal(one.column, other.column)
        assert one.row is not None
        assert len(one.row) == len(one.column)
