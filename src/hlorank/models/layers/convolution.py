"""Message passing that is linear in the neighbours' states."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hlorank.config import Directions
from hlorank.models.compression.edges import EdgeKind, Norm
from hlorank.models.compression.plan import QuotientGraph
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer
from hlorank.models.propagation import propagate


class Convolution(Layer):
    """y_v = b + sum over edge types k of W_k sum over u in N_k(v) of a_vu x_u.

    The edge types k are the node itself, its operands and its users, or its neighbours of either direction together.
    The `norm` of a subclass defines the weights a_vu. All states before are multiplied by all W_k, and the products
    are summed along the edges: there are fewer states before than edges.

    Args:
        inputs: width of the states before.
        width: of the states after.
        directions: of the edges; see `EdgeKind`.

    Attributes:
        norm: of the edges.
        own_weights: W_k of the node itself differs from that of its neighbours, if these share one.
        weights: (edge types, width, inputs), the W_k.
        bias: (width,), b.
    """

    mixing = Mixing.NEIGHBOURS
    norm: ClassVar[Norm]
    own_weights: ClassVar[bool]

    def __init__(self, inputs: int, width: int, directions: Directions) -> None:
        super().__init__()
        self.edges = EdgeKind(self.norm, directions, own_type=self.own_weights or directions == "separate")
        maps = [nn.Linear(inputs, width, bias=place == 0) for place in range(self.edges.types)]
        self.weights = nn.Parameter(torch.empty(len(maps), width, inputs))
        with torch.no_grad():  # not torch.stack, for which PyTorch imports its compiler on the device meta
            for own, one in zip(self.weights, maps, strict=True):
                own.copy_(one.weight)
        self.bias = nn.Parameter(maps[0].bias.detach())

    def forward(self, x: Tensor, graph: QuotientGraph[Tensor]) -> Tensor:
        """Compute (colours before, inputs) to (colours after, width)."""
        count, width = self.weights.shape[:2]
        products = linear(x, self.weights.flatten(0, 1))
        if count > 1 and graph.copies > 1:
            products = products.view(-1, graph.copies, count, width).transpose(1, 2)
        summed = propagate(products.reshape(-1, graph.copies * width), graph.matrix)
        return summed.view(-1, width) + self.bias
