"""Layers of this project, by the names that conf/config.yaml uses in model.block."""

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from hlorank.models.layers.registry import LAYERS


class MaxConv(MessagePassing):
    """GraphSAGE with the maximum over neighbours: y_v = W_1 x_v + W_2 max over u of x_u + b."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="max")
        self.own = nn.Linear(in_channels, out_channels)
        self.others = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        """Compute (sources, in_channels) and (targets, in_channels) to (targets, out_channels)."""
        result: Tensor = self.own(x[1]) + self.others(self.propagate(edge_index, x=x))
        return result


LAYERS["max_conv"] = MaxConv
