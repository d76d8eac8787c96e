"""GraphSAGE."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from hlorank.models.adjacency import mean_over_neighbours
from hlorank.models.inputs import Hop, Segment
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

    def _messages(self, z: Tensor, edges: Segment | Hop) -> Tensor:
        operands: Tensor = mean_over_neighbours(self.operands(z), edges.operands)
        return operands + mean_over_neighbours(self.users(z), edges.users)

    def _mask(self, nodes: int, like: Tensor) -> Tensor:
        # One mask serves all configurations, so that they stay comparable within a step.
        mask: Tensor = self.dropout(like.new_ones(nodes, like.shape[-1]))
        return mask

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The plain form: (nodes, configurations, width) to the same shape."""
        z = self.norm(x)
        update = gelu(self.own(z) + self._messages(z, segment))
        return x + self._mask(segment.nodes, x)[:, None] * update

    def spread(self, state: State, segment: Segment) -> State:
        """The same, where the configuration reaches one edge farther than before.

        What enters the activation is linear in the neighbours: the part that comes from nodes without the
        configuration axis is computed once, for all nodes, and the other part is added to it.
        """
        before, after = segment.reached(state.hops), segment.reached(state.hops + 1)
        own = pad(self.norm(state.unreached()), (0, 0, before, 0))
        once = self.own(own) + self._messages(own, segment)
        z = self.norm(state.varied)
        each = once[:after, None] + self._messages(z, segment.hop(state.hops))
        each = each + pad(linear(z, self.own.weight), (0, 0, 0, 0, 0, after - before))
        mask = self._mask(segment.nodes, state.shared)
        fresh = state.shared[before:after, None].expand(-1, state.varied.shape[1], -1)
        return State(
            state.shared + mask * gelu(once),
            torch.cat([state.varied, fresh]) + mask[:after, None] * gelu(each),
            state.hops + 1,
        )
