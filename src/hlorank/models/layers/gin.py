"""The graph isomorphism network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hlorank.models.compression.edges import EdgeKind, Norm
from hlorank.models.compression.plan import QuotientGraph
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.parts import mlp
from hlorank.models.propagation import propagate


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
        self.edges = EdgeKind(Norm.SUM, shared, itself=False, linear=False)
        self.epsilon = nn.Parameter(torch.zeros(1 if shared else 2))
        self.mlp = mlp(width * len(self.epsilon), width, width)

    def forward(self, x: Tensor, graph: QuotientGraph[Tensor]) -> Tensor:
        """Compute (colours before, width) to (colours after, width)."""
        own = x if graph.roots is None else propagate(x, graph.roots)
        parts = []
        for epsilon, (source, target) in zip(self.epsilon, graph.directions, strict=True):
            summed = torch.zeros_like(own).index_add(0, target, x[source])
            parts.append((1 + epsilon) * own + summed)
        result: Tensor = self.mlp(torch.cat(parts, dim=-1))
        return result
