"""The graph isomorphism network, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import GINConv

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.gin import Gin
from tests.models.run_layer import run_dense

EdgeIndices = tuple[Tensor, Tensor]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    make_layer: Callable[..., Gin], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("gin", directions="shared")
    assert layer.epsilon.tolist() == [0]
    layer.epsilon.data.fill_(0.25)
    convolution = GINConv(layer.mlp, eps=0.25).double()
    result, both = run_dense(layer, X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], convolution(X[:, c], both), rtol=1e-10, atol=1e-12)


def test_with_separate_directions_the_mlp_reads_both_sums(
    make_layer: Callable[..., Gin], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer, scalars = make_layer("gin", directions="separate"), (0.25, -0.5)
    layer.epsilon.data.copy_(torch.tensor(scalars))
    sums = [GINConv(torch.nn.Identity(), eps=epsilon).double() for epsilon in scalars]
    result = run_dense(layer, X, segment)
    for c in range(3):
        read = torch.cat([part(X[:, c], index) for part, index in zip(sums, edge_indices, strict=True)], dim=1)
        torch.testing.assert_close(result[:, c], layer.mlp(read), rtol=1e-10, atol=1e-12)
