"""Colouring of states: two nodes under configurations share one exactly where all that has reached them is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.models.compression.colouring import Colouring, NodeStates
from hlorank.models.edges import Neighbourhood, Norm
from hlorank.models.inputs import GraphInputs

MakeInputs = Callable[..., GraphInputs]
FirstState = Callable[..., NodeStates]


def test_rows_are_ordered_by_where_they_first_stand() -> None:
    rows = Colouring.distinct(np.array([[7, 3, 7], [3, 9, 9]]), np.array([5, 7, 5]))
    assert rows.every.tolist() == [[0, 1, 0], [1, 2, 2], [3, 3, 3], [0, 0, 0], [3, 3, 3]]
    assert (len(rows), rows.reached) == (4, 2)
    assert (rows.node.tolist(), rows.configuration.tolist()) == ([0, 0, 1, 2], [0, 1, 1, 0])
    plain = Colouring.plain(2, 3)
    assert plain.every.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (plain.node.tolist(), plain.configuration.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])


def histories(rows: Colouring, edges: Neighbourhood) -> dict[tuple[int, int], object]:
    """What each node under each configuration receives in a layer, from rows before it."""
    return {
        (node, c): frozenset(
            Counter(
                (kind, round(weight, 12), int(rows.every[source, c]))
                for source, kind, weight in zip(
                    *(values[edges.starts[node] : edges.starts[node + 1]].tolist() for values in edges[1:4]),
                    strict=True,
                )
            ).items()
        )
        for node in range(len(rows.every))
        for c in range(rows.every.shape[1])
    }


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(8, 60),
    segments=st.integers(1, 3),
    halo=st.integers(0, 2),
    apart=st.booleans(),
    norm=st.sampled_from(Norm),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_what_differs_has_a_row_of_its_own(
    nodes: int,
    segments: int,
    halo: int,
    apart: bool,
    norm: Norm,
    shared: bool,
    seed: int,
    make_inputs: MakeInputs,
    first_state: FirstState,
) -> None:
    weight_of = (0, 1) if shared else (0, 1, 2)
    weights = len(weight_of)
    for segment in make_inputs(nodes=nodes, segments=segments, halo=halo, distinct=4, seed=seed).segments:
        rows = first_state(segment, 4, 1, apart).rows
        edges = segment.edges.normed(norm, shared).neighbourhood
        for hops in range(1, 4):
            history, before = histories(rows, edges), rows
            rows = rows.spread(edges, segment.reached(hops))
            row_of: dict[object, int] = {}
            for (node, c), received in history.items():
                assert row_of.setdefault(received, rows.every[node, c]) == rows.every[node, c]
            assert len(row_of) == len(rows)
            assert rows.every[rows.node, rows.configuration].tolist() == list(range(len(rows)))
            matrix = rows.messages(before, edges, weight_of, torch.device("cpu")).matrix.tocoo()
            received = [Counter[tuple[int, float, int]]() for _ in range(len(rows))]
            for row, column, weight in zip(matrix.row, matrix.col, matrix.data, strict=True):
                received[row][int(column % weights), round(float(weight), 12), int(column // weights)] += 1
            expected = [history[node, c] for node, c in zip(rows.node, rows.configuration, strict=True)]
            assert [frozenset(counts.items()) for counts in received] == expected


@pytest.fixture(params=["shared", "apart", "plain", "one configuration"])
def state(request: pytest.FixtureRequest, make_inputs: MakeInputs, first_state: FirstState) -> NodeStates:
    (segment,) = make_inputs(nodes=30).segments
    if request.param == "plain":
        return NodeStates.of(torch.randn(30, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    return first_state(segment, 1 if request.param == "one configuration" else 3, 4, request.param == "apart")


def assert_same(state: NodeStates, ours: Callable[[NodeStates], Tensor], plain: Callable[[Tensor], Tensor]) -> None:
    """Values and gradients of a function of a state and of its dense form."""
    values = state.values.requires_grad_()
    results = ours(state), plain(values[torch.from_numpy(state.rows.every)])
    torch.testing.assert_close(*results)
    weight = torch.randn(results[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad((result * weight).sum(), values)[0] for result in results)
    torch.testing.assert_close(*gradients)


def test_poolings_equal_the_plain_form(state: NodeStates) -> None:
    assert_same(state, NodeStates.dense, lambda x: x)
    assert_same(state, NodeStates.sum, lambda x: x.sum(dim=0))
    assert_same(state, NodeStates.max, lambda x: x.max(dim=0).values)


def test_some_nodes(state: NodeStates) -> None:
    kept = np.random.default_rng(0).random(30) < 0.4
    some = state.only(kept)
    assert some.rows.reached == kept[: state.rows.reached].sum()
    assert len(some.rows) <= min(len(state.rows), some.rows.every.size)
    mask = torch.from_numpy(kept)
    assert_same(state, lambda state: state.only(kept).dense(), lambda x: x[mask])
    assert_same(state, lambda state: state.only(kept).max(), lambda x: x[mask].max(dim=0).values)


def test_a_function_of_nodes_that_share_no_row(make_inputs: MakeInputs, first_state: FirstState) -> None:
    (segment,) = make_inputs(nodes=30).segments
    state = first_state(segment, 3, 4, apart=True)
    mapped = state._replace(values=state.map_nodes(lambda x: x - x.mean(dim=1, keepdim=True)))
    x = state.dense()
    torch.testing.assert_close(mapped.dense(), x - x.mean(dim=1, keepdim=True))
