"""Functions of both ends of edges, in pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Norm
from hlorank.models.compression.segment import Segment
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.message_passing import EdgeWise
from tests.models.run_layer import colouring_of, run_dense


class Recorded(EdgeWise):
    """A layer that sums over neighbours, and records the number of edges that are in memory at once."""

    def __init__(self) -> None:
        super().__init__(4, EdgeKind(Norm.SUM, "separate", form=EdgeForm.PIECES))
        self.pieces: list[tuple[int, int]] = []

    def combine(self, target: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        self.pieces.append((len(target), rows))
        assert len(target) == len(source) == len(row)
        assert row.numel() == 0 or (row.min() == 0 and row.max() == rows - 1 and (row.diff() >= 0).all())
        return source.new_zeros(rows, 4).index_add(0, row, target + source)


@pytest.mark.parametrize("segments", [1, 5, 40])
def test_edges_are_computed_in_pieces_and_again_for_gradients(
    segments: int, make_inputs: Callable[..., GraphInputs]
) -> None:
    (segment, *_) = make_inputs(nodes=40, segments=segments).segments
    layer, x = Recorded().double(), torch.randn(segment.nodes, 2, 4, dtype=torch.float64)
    result = run_dense(layer, x, segment)
    pieces = list(layer.pieces)
    entries = 2 * (segment.nodes + 2 * len(segment.edges))
    assert [sum(column) for column in zip(*pieces, strict=True)] == [entries, 2 * segment.nodes]
    assert len(pieces) == entries // (2 * segment.nodes)
    torch.autograd.backward(result.sum())
    assert sorted(layer.pieces) == sorted(2 * pieces)


def test_nodes_without_edges_to_them_get_no_more_colours(make_layer: Callable[..., Layer], segment: Segment) -> None:
    """Nodes that are not configurable keep their colours, which a residual connection needs."""
    before, free = colouring_of(segment, 5, share=True), segment.configurable
    edges = make_layer("reproductions:EdgeMlp").edges
    assert edges is not None
    after = before.refine(segment.edges.neighbourhood(edges), segment.k_hop_prefix(1))
    assert len(set(after.colour_of[free:].flat)) == len(set(before.colour_of[free:].flat))
    assert (after.colour_of[free:] == after.colour_of[free:, :1]).all()
