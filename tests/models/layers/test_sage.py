"""GraphSAGE, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer

EdgeIndices = tuple[Tensor, Tensor]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_with_separate_directions_it_is_two_convolutions(
    make_layer: Callable[..., Layer], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("sage", directions="separate")
    over_operands = SAGEConv(6, 6, aggr="mean").double()
    over_users = SAGEConv(6, 6, aggr="mean", root_weight=False, bias=False).double()
    with torch.no_grad():
        over_operands.lin_r.weight.copy_(layer.get_parameter("maps.0.weight"))
        over_operands.lin_l.weight.copy_(layer.get_parameter("maps.1.weight"))
        over_operands.lin_l.bias.copy_(layer.get_parameter("maps.0.bias"))
        over_users.lin_l.weight.copy_(layer.get_parameter("maps.2.weight"))
    result = layer(X, segment)
    for c in range(3):
        expected = over_operands(X[:, c], edge_indices[0]) + over_users(X[:, c], edge_indices[1])
        torch.testing.assert_close(result[:, c], expected, rtol=1e-10, atol=1e-12)


def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    make_layer: Callable[..., Layer], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("sage", directions="shared")
    convolution = SAGEConv(6, 6, aggr="mean").double()
    with torch.no_grad():
        convolution.lin_r.weight.copy_(layer.get_parameter("maps.0.weight"))
        convolution.lin_l.weight.copy_(layer.get_parameter("maps.1.weight"))
        convolution.lin_l.bias.copy_(layer.get_parameter("maps.0.bias"))
    result, both = layer(X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], convolution(X[:, c], both), rtol=1e-10, atol=1e-12)
