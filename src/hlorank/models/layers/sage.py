"""GraphSAGE."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from hlorank.models.adjacency import propagate
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.state import State


class SageLayer(Layer):
    """GraphSAGE with mean aggregation over both edge directions, with separate weights, and a residual.

    y = x + dropout(gelu(W_self z + W_operands mean_operands(z) + W_users mean_users(z) + b)), z = LayerNorm(x)
    (Hamilton et al., NeurIPS 2017, arXiv 1706.02216, equation 2, once for each direction).
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def _kept(self, nodes: int, like: Tensor) -> Tensor:
        # One mask serves all configurations, so that they stay comparable within a step.
        mask: Tensor = self.dropout(like.new_ones(nodes, like.shape[-1]))
        return mask

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The plain form: (nodes, configurations, width) to the same shape."""
        z = self.norm(x)
        messages = propagate(self.operands(z), segment.operands) + propagate(self.users(z), segment.users)
        update = gelu(self.own(z) + messages)
        return x + self._kept(segment.nodes, x)[:, None] * update

    def spread(self, state: State, segment: Segment) -> State:
        """The same, where the configurations reach one edge farther than before.

        A row before is multiplied by the three weights at once, and a row after sums what it receives of them.
        """
        hops, device = state.hops + 1, state.values.device
        rows = state.rows.spread(segment.neighbourhood, segment.reached(hops))
        weight = torch.cat([self.own.weight, self.operands.weight, self.users.weight])
        products = linear(self.norm(state.values), weight).view(3 * len(state.rows), -1)
        messages = rows.messages(state.rows, segment.neighbourhood, device)
        update = gelu(propagate(products, messages) + self.own.bias)
        if self.training and self.dropout.p:
            update = update * self._kept(segment.nodes, update)[torch.from_numpy(rows.node).to(device)]
        previous = propagate(state.values, rows.previous(state.rows, device))
        return State(previous + update, rows, hops)
