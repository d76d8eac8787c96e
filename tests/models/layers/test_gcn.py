"""The graph convolutional network, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.layer import Layer
from tests.models.run_layer import run_dense

EdgeIndices = tuple[Tensor, Tensor]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    make_layer: Callable[..., Layer], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("gcn", directions="shared")
    assert set(dict(layer.named_parameters())) == {"weights", "bias"}
    convolution = GCNConv(6, 6).double()
    with torch.no_grad():
        convolution.lin.weight.copy_(layer.get_parameter("weights")[0])
        convolution.bias.copy_(layer.get_parameter("bias"))
    result, both = run_dense(layer, X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], convolution(X[:, c], both), rtol=1e-10, atol=1e-12)


def test_with_separate_directions_each_edge_type_has_weights(
    make_layer: Callable[..., Layer], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("gcn", directions="separate")
    own, operands, users = (layer.get_parameter("weights")[kind] for kind in range(3))
    source, target = edge_indices[0]
    adjacency = torch.zeros(24, 24, dtype=torch.float64).index_put_(
        (target, source), torch.ones(len(source), dtype=torch.float64), accumulate=True
    )
    scale = (1 + adjacency.sum(0) + adjacency.sum(1)).rsqrt()
    scaled = scale[:, None] * adjacency * scale
    for c in range(3):
        x = X[:, c]
        expected = (scale.square()[:, None] * x) @ own.T + scaled @ x @ operands.T + scaled.T @ x @ users.T
        expected = expected + layer.get_parameter("bias")
        torch.testing.assert_close(run_dense(layer, X, segment)[:, c], expected, rtol=1e-10, atol=1e-12)
