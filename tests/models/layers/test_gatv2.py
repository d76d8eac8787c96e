"""Graph attention, against PyTorch Geometric's and its equations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATv2Conv

from hlorank.config import ConfigError
from hlorank.models.compression.segment import Segment
from hlorank.models.layers.message_passing import Gatv2
from tests.models.run_layer import run_dense

EdgeIndices = tuple[Tensor, Tensor]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_with_shared_directions_it_is_a_convolution_of_the_symmetric_graph(
    heads: int, make_layer: Callable[..., Gatv2], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("gatv2", directions="shared", heads=heads)
    convolution = GATv2Conv(6, 6 // heads, heads=heads).double()
    with torch.no_grad():
        layer.bias.normal_()
        convolution.lin_l.weight.copy_(layer.sources.weight)
        convolution.lin_r.weight.copy_(layer.target.weight)
        # Two biases, one on each side, equal a single one.
        convolution.lin_l.bias.fill_(0.7)
        convolution.lin_r.bias.copy_(layer.target.bias - 0.7)
        convolution.att.copy_(layer.attention[None])
        convolution.bias.copy_(layer.bias - 0.7)
    result, both = run_dense(layer, X, segment), torch.cat(edge_indices, dim=1)
    expected = torch.stack([convolution(X[:, c], both) for c in range(3)], dim=1)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    for got in (result, expected):
        torch.autograd.backward(got.square().sum())
    for ours, theirs in (
        (layer.attention, convolution.att[0].new_tensor(convolution.att.grad[0].tolist())),
        (layer.sources.weight, convolution.lin_l.weight.grad),
        (layer.target.weight, convolution.lin_r.weight.grad),
    ):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-10, atol=1e-10)


def test_with_separate_directions_each_edge_type_has_source_weights(
    make_layer: Callable[..., Gatv2], segment: Segment, edge_indices: EdgeIndices
) -> None:
    layer = make_layer("gatv2", directions="separate", heads=2)
    own, operands, users = layer.sources.weight.chunk(3)
    result = run_dense(layer, X, segment)
    for v in range(24):
        for c in range(3):
            received = [own @ X[v, c]]
            for (source, target), weight in zip(edge_indices, (operands, users), strict=True):
                received += [weight @ X[u, c] for u in source[target == v]]
            wanted = layer.target(X[v, c])
            for head, channels in enumerate((slice(0, 3), slice(3, 6))):
                messages = torch.stack(received)[:, channels]
                weights = torch.softmax(leaky_relu(wanted[channels] + messages, 0.2) @ layer.attention[head], dim=0)
                torch.testing.assert_close(result[v, c, channels], weights @ messages, rtol=1e-10, atol=1e-12)


def test_heads_must_divide_the_width(make_layer: Callable[..., Gatv2]) -> None:
    with pytest.raises(ConfigError, match=r"model.heads=4: .*model.width=6"):
        make_layer("gatv2", heads=4)
