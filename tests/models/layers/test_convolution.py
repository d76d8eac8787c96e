"""Convolutions over neighbours, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GraphConv, SAGEConv

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.layer import Layer
from tests.models.run_layer import run_dense

EdgeIndices = tuple[Tensor, Tensor]
MakeLayer = Callable[..., Layer]
Theirs = Callable[[Tensor | None, Tensor, Tensor], Any]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def sage(own: Tensor | None, others: Tensor, bias: Tensor) -> Any:
    """GraphSAGE of PyTorch Geometric with given weights; without weights of the node itself there is no bias."""
    convolution = SAGEConv(6, 6, aggr="mean", root_weight=own is not None, bias=own is not None).double()
    with torch.no_grad():
        convolution.lin_l.weight.copy_(others)
        if own is not None:
            convolution.lin_l.bias.copy_(bias)
            convolution.lin_r.weight.copy_(own)
    return convolution


def graph_conv(own: Tensor | None, others: Tensor, bias: Tensor) -> Any:
    """Graph convolution of PyTorch Geometric with given weights; it always has weights of the node itself."""
    convolution = GraphConv(6, 6, bias=own is not None).double()
    with torch.no_grad():
        convolution.lin_rel.weight.copy_(others)
        convolution.lin_root.weight.copy_(torch.zeros(6, 6) if own is None else own)
        if own is not None:
            convolution.lin_rel.bias.copy_(bias)
    return convolution


every_convolution = pytest.mark.parametrize(("name", "theirs"), [("sage", sage), ("graph_conv", graph_conv)])


@every_convolution
def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    name: str, theirs: Theirs, make_layer: MakeLayer, segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer(name, directions="shared")
    own, others = (layer.get_parameter("weights")[kind] for kind in range(2))
    convolution = theirs(own, others, layer.get_parameter("bias"))
    result, both = run_dense(layer, X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], convolution(X[:, c], both), rtol=1e-10, atol=1e-12)


@every_convolution
def test_with_separate_directions_it_is_two_convolutions(
    name: str, theirs: Theirs, make_layer: MakeLayer, segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer(name, directions="separate")
    own, operands, users = (layer.get_parameter("weights")[kind] for kind in range(3))
    bias = layer.get_parameter("bias")
    over_operands, over_users = theirs(own, operands, bias), theirs(None, users, bias)
    result = run_dense(layer, X, segment)
    for c in range(3):
        expected = over_operands(X[:, c], edge_indices[0]) + over_users(X[:, c], edge_indices[1])
        torch.testing.assert_close(result[:, c], expected, rtol=1e-10, atol=1e-12)
