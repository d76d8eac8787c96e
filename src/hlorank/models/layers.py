"""Message-passing layers over states with a configuration axis."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu

from hlorank.models.adjacency import mean_over_neighbours
from hlorank.models.inputs import Segment


class SageLayer(nn.Module):
    """GraphSAGE with mean aggregation over both edge directions, with separate weights, and a residual.

    y = x + dropout(gelu(W_self z + W_operands mean_operands(z) + W_users mean_users(z) + b)), z = LayerNorm(x)
    (Hamilton et al., NeurIPS 2017, arXiv 1706.02216, equation 2, once for each direction).
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """(nodes, configurations, width) to the same shape."""
        z = self.norm(x)
        messages = self.operands(mean_over_neighbours(z, segment.operands))
        messages = messages + self.users(mean_over_neighbours(z, segment.users))
        # One mask serves all configurations, so that they stay comparable within a step.
        mask = self.dropout(z.new_ones(len(z), 1, z.shape[-1]))
        update: Tensor = mask * gelu(self.own(z) + messages)
        return x + update
