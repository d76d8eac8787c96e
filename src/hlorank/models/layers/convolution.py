"""Message passing that is linear in the neighbours' states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import QuotientGraph
from hlorank.models.edges import Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.node_states import NodeStates


class Convolution(Layer):
    """y_v = b + sum over edge types k of W_k sum over u in N_k(v) of a_vu x_u.

    The edge types k are the node itself, its operands and its users, or its neighbours of either direction together.
    The `norm` of a subclass defines the weights a_vu.

    Args:
        width: length of a state.
        shared: edges of both directions have the same weights.

    Attributes:
        norm: of the edges.
        own_weights: W_k of the node itself differs from that of its neighbours, if these share one.
    """

    mixing = Mixing.NEIGHBOURS
    norm: ClassVar[Norm]
    own_weights: ClassVar[bool]

    def __init__(self, width: int, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.weight_of: tuple[int, ...] = (0, int(self.own_weights)) if shared else (0, 1, 2)
        count = max(self.weight_of) + 1
        # The first has the bias.
        self.maps = nn.ModuleList(nn.Linear(width, width, bias=place == 0) for place in range(count))

    @property
    def _weights(self) -> Sequence[Tensor]:
        return [layer.get_parameter("weight") for layer in self.maps]

    @property
    def _bias(self) -> Tensor:
        return self.maps[0].get_parameter("bias")

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        edges, weights = segment.edges.normed(self.norm, self.shared), self._weights
        messages = (propagate(linear(x, weights[w]), part) for w, part in zip(self.weight_of, edges.parts, strict=True))
        return sum(messages, start=self._bias)

    def forward_compressed(self, states: NodeStates, segment: Segment) -> NodeStates:
        """Compute the compressed form: all colours before times all weights, summed over the quotient graph."""
        neighbourhood = segment.edges.normed(self.norm, self.shared).neighbourhood
        colouring, hops = states.refine(segment, neighbourhood)
        quotient = QuotientGraph.between(states.colouring, colouring, neighbourhood)
        products = linear(states.values, torch.cat(list(self._weights))).view(-1, states.values.shape[1])
        product = len(self.maps) * quotient.source + np.array(self.weight_of)[quotient.edge_type]
        sums = Adjacency(product, quotient.starts, quotient.weight, len(products), products.device)
        return NodeStates(propagate(products, sums) + self._bias, colouring, hops)
