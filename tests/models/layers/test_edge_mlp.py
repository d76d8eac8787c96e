"""The MLP on edges, against its equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.edge_mlp import EdgeMlp
from tests.models.run_layer import colouring_of, run_dense

X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("directions", ["separate", "shared"])
def test_equals_the_equation_and_other_nodes_get_zero(
    directions: str, make_layer: Callable[..., EdgeMlp], segment: Segment, edge_indices: tuple[Tensor, Tensor]
) -> None:
    layer = make_layer("edge_mlp", directions=directions)
    operands, users = layer.sources.weight.chunk(2) if directions == "separate" else 2 * (layer.sources.weight,)
    result = run_dense(layer, X, segment)
    assert 0 < segment.configurable < 24
    for v in range(segment.k_hop_prefix(0)):
        for c in range(3):
            summed = torch.zeros(6, dtype=torch.float64)
            for (source, target), weight in zip(edge_indices, (operands, users), strict=True):
                for u in source[target == v]:
                    # An MLP of the concatenated states of both ends.
                    read = torch.cat([layer.target.weight, weight], dim=1) @ torch.cat([X[v, c], X[u, c]])
                    summed = summed + gelu(read + layer.target.bias)
            torch.testing.assert_close(result[v, c], layer.output.weight @ summed, rtol=1e-10, atol=1e-12)
    assert not result[segment.k_hop_prefix(0) :].any()


def test_other_nodes_get_no_more_colours(make_layer: Callable[..., EdgeMlp], segment: Segment) -> None:
    """Nodes that are not configurable keep their colours, which a residual connection needs."""
    before, free = colouring_of(segment, 5, share=True), segment.configurable
    edges = make_layer("edge_mlp").edges
    assert edges is not None
    after = before.refine(segment.edges.neighbourhood(edges), segment.k_hop_prefix(1))
    assert len(set(after.colour_of[free:].flat)) == len(set(before.colour_of[free:].flat))
    assert (after.colour_of[free:] == after.colour_of[free:, :1]).all()
