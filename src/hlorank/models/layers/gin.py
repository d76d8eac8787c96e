"""The graph isomorphism network."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import QuotientGraph
from hlorank.models.edges import Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.parts import mlp
from hlorank.models.node_states import NodeStates


class Gin(Layer):
    """Sums over neighbours, which distinguish neighbourhoods that means do not.

    y_v = MLP((1 + e) x_v + sum of x_u over neighbours u), e learned (Xu et al., ICLR 2019, arXiv 1810.00826,
    equation 4.1). With separate directions the MLP reads two such sums, over operands and over users, each with its e.

    Args:
        width: length of a state.
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
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        _, *directions = segment.edges.normed(Norm.SUM, self.shared).parts
        return self._combined(x, (propagate(x, part) for part in directions))

    def forward_compressed(self, states: NodeStates, segment: Segment) -> NodeStates:
        """Compute the compressed form, on the quotient graph."""
        neighbourhood = segment.edges.normed(Norm.SUM, self.shared).neighbourhood
        colouring, hops = states.refine(segment, neighbourhood)
        quotient = QuotientGraph.between(states.colouring, colouring, neighbourhood)

        def summed(edge_type: int) -> Tensor:
            edges = quotient.edge_type == edge_type
            starts = np.searchsorted(quotient.target[edges], np.arange(len(colouring) + 1))
            sums = Adjacency(quotient.source[edges], starts, None, len(states.values), states.values.device)
            return propagate(states.values, sums)

        own, *sums = (summed(edge_type) for edge_type in range(1 + len(self.epsilon)))
        return NodeStates(self._combined(own, sums), colouring, hops)
