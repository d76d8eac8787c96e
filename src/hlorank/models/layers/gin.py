"""The graph isomorphism network."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import NodeStates
from hlorank.models.edges import Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.mlp import mlp


class Gin(Layer):
    """Sums over neighbours, which tell apart what means do not.

    y_v = MLP((1 + e) x_v + sum of x_u over neighbours u), e learned (Xu et al., ICLR 2019, arXiv 1810.00826,
    equation 4.1). With separate directions the MLP reads two such sums, over operands and over users, each with its e.

    Args:
        width: of states.
        shared: edges of both directions are summed together.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.epsilon = nn.Parameter(torch.zeros(1 if shared else 2))
        self.mlp = mlp(width * len(self.epsilon), width, width)

    def _combined(self, own: Tensor, sums: Iterable[Tensor]) -> Tensor:
        parts = [(1 + epsilon) * own + part for epsilon, part in zip(self.epsilon, sums, strict=True)]
        result: Tensor = self.mlp(torch.cat(parts, dim=-1))
        return result

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        _, *directions = segment.edges.normed(Norm.SUM, self.shared).parts
        return self._combined(x, (propagate(x, part) for part in directions))

    def spread(self, state: NodeStates, segment: Segment) -> NodeStates:
        """The same, where the configurations reach one edge farther than before."""
        neighbourhood = segment.edges.normed(Norm.SUM, self.shared).neighbourhood
        hops, reached = state.next_reach(segment)
        rows = state.rows.spread(neighbourhood, reached)
        received = rows.received(state.rows, neighbourhood)

        def summed(kind: int) -> Tensor:
            entries = received.kind == kind
            starts = np.searchsorted(received.row[entries], np.arange(len(rows) + 1))
            source = received.source[entries]
            return propagate(state.values, Adjacency(source, starts, None, len(state.rows), state.values.device))

        own, *sums = (summed(kind) for kind in range(1 + len(self.epsilon)))
        return NodeStates(self._combined(own, sums), rows, hops)
