"""Colour refinement: states share a colour exactly if all that has reached them is the same."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable
from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import Directions
from hlorank.models import compression
from hlorank.models.compression.build_plan import quotient_graph
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import EdgeKind, Norm
from hlorank.models.compression.plan import QuotientGraph
from hlorank.models.compression.segment import Neighbourhood
from hlorank.models.graph_inputs import GraphInputs
from tests.models.dense_form import colouring_of

MakeInputs = Callable[..., GraphInputs]


def test_the_worked_example() -> None:
    result = doctest.testmod(compression)
    assert result.attempted > 0
    assert result.failed == 0


def test_colours_are_ordered_by_first_occurrence() -> None:
    colouring, dense = (
        Colouring.of_keys(np.array([[7, 3, 7], [3, 9, 9]]), np.array([5, 7, 5])),
        Colouring.identity(2, 3),
    )
    assert colouring.colour_of.tolist() == [[0, 1, 0], [1, 2, 2], [3, 3, 3], [0, 0, 0], [3, 3, 3]]
    assert (len(colouring), colouring.prefix, colouring.is_identity) == (4, 2, False)
    assert (colouring.node.tolist(), colouring.configuration.tolist()) == ([0, 0, 1, 2], [0, 1, 1, 0])
    assert (dense.colour_of.tolist(), dense.is_identity) == ([[0, 1, 2], [3, 4, 5]], True)
    assert (dense.node.tolist(), dense.configuration.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])


def histories(colouring: Colouring, neighbourhood: Neighbourhood) -> dict[tuple[int, int], object]:
    """The colours that each node under each configuration receives in a layer, with edge types and weights."""
    return {
        (node, c): frozenset(
            Counter(
                (edge_type, round(weight, 12), int(colouring.colour_of[source, c]))
                for source, edge_type, weight in zip(
                    *(
                        values[neighbourhood.starts[node] : neighbourhood.starts[node + 1]].tolist()
                        for values in neighbourhood[1:4]
                    ),
                    strict=True,
                )
            ).items()
        )
        for node in range(len(colouring.colour_of))
        for c in range(colouring.colour_of.shape[1])
    }


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(8, 60),
    segments=st.integers(1, 3),
    halo=st.integers(0, 2),
    share=st.booleans(),
    norm=st.sampled_from(Norm),
    directions=st.sampled_from(get_args(Directions)),
    seed=st.integers(0, 10**6),
)
def test_states_share_a_colour_exactly_if_they_receive_the_same(
    nodes: int,
    segments: int,
    halo: int,
    share: bool,
    norm: Norm,
    directions: Directions,
    seed: int,
    make_inputs: MakeInputs,
) -> None:
    for segment in make_inputs(nodes=nodes, segments=segments, halo=halo, distinct=4, seed=seed).segments:
        colouring = colouring_of(segment, 4, share)
        kind = EdgeKind(norm, directions)
        neighbourhood = segment.edges.neighbourhood(kind)
        for hops in range(1, 4):
            history, before = histories(colouring, neighbourhood), colouring
            colouring = before.refine(neighbourhood, segment.k_hop_prefix(hops))
            colour_of: dict[object, int] = {}
            for (node, c), received in history.items():
                assert colour_of.setdefault(received, colouring.colour_of[node, c]) == colouring.colour_of[node, c]
            assert len(colour_of) == len(colouring)
            assert (colouring.roots(before)[colouring.colour_of] == before.colour_of).all()
            assert colouring.colour_of[colouring.node, colouring.configuration].tolist() == list(range(len(colouring)))
            if before.is_identity:
                break
            quotient = quotient_graph(before, colouring, neighbourhood, kind)
            assert isinstance(quotient, QuotientGraph)
            matrix = quotient.matrix
            degree = np.diff(np.append(matrix.row_starts, len(matrix.column)))
            targets = np.repeat(np.arange(len(colouring)), degree)
            assert matrix.weight is not None
            edges = [Counter[tuple[int, float, int]]() for _ in range(len(colouring))]
            for target, column, weight in zip(targets, matrix.column, matrix.weight, strict=True):
                source, edge_type = divmod(int(column), kind.types)
                edges[target][edge_type, round(float(weight), 12), source] += 1
            expected = [history[node, c] for node, c in zip(colouring.node, colouring.configuration, strict=True)]
            assert [frozenset(counts.items()) for counts in edges] == expected
