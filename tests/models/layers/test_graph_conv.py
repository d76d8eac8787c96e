"""Graph convolution by sums, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import GraphConv

from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer

EdgeIndices = tuple[Tensor, Tensor]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    make_layer: Callable[..., Layer], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("graph_conv", directions="shared")
    convolution = GraphConv(6, 6).double()
    with torch.no_grad():
        convolution.lin_root.weight.copy_(layer.get_parameter("maps.0.weight"))
        convolution.lin_rel.weight.copy_(layer.get_parameter("maps.1.weight"))
        convolution.lin_rel.bias.copy_(layer.get_parameter("maps.0.bias"))
    result, both = layer(X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], convolution(X[:, c], both), rtol=1e-10, atol=1e-12)
