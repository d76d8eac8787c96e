"""The GPS layer, against PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import GPSConv, SAGEConv
from torch_geometric.nn.attention import PerformerAttention

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.attention import Gps, LinearAttention
from tests.models.run_layer import run_dense

X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Attention(PerformerAttention):  # type: ignore[misc] # PyTorch Geometric ships no types
    """Our linear attention under the interface of PyTorch Geometric, which has none with the same feature map."""

    def __init__(self, layer: LinearAttention, segment: Segment) -> None:
        nn.Module.__init__(self)
        self.layer, self.segment = layer, segment

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute (1, nodes, width) to the same shape."""
        result: Tensor = run_dense(self.layer, x.transpose(0, 1), self.segment)
        return result.transpose(0, 1)


def test_equals_pytorch_geometric(
    make_layer: Callable[..., Gps], segment: Segment, edge_indices: tuple[Tensor, Tensor]
) -> None:
    layer = make_layer("gps", directions="shared")
    for parameter in layer.norms.parameters():
        nn.init.normal_(parameter)
    convolution = SAGEConv(6, 6, aggr="mean").double()
    with torch.no_grad():
        convolution.lin_r.weight.copy_(layer.near.get_parameter("weights")[0])
        convolution.lin_l.weight.copy_(layer.near.get_parameter("weights")[1])
        convolution.lin_l.bias.copy_(layer.near.get_parameter("bias"))
    expected = GPSConv(6, convolution, act="gelu", norm=None, attn_type="performer").double().eval()
    expected.attn = Attention(layer.far, segment)
    expected.norm1, expected.norm2, expected.norm3 = layer.norms
    with torch.no_grad():
        expected.mlp[0].load_state_dict(layer.mlp[0].state_dict())
        expected.mlp[3].load_state_dict(layer.mlp[2].state_dict())
    result, both = run_dense(layer, X, segment), torch.cat(edge_indices, dim=1)
    for c in range(3):
        torch.testing.assert_close(result[:, c], expected(X[:, c], both), rtol=1e-10, atol=1e-12)
