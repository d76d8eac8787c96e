"""Message passing that is linear in the neighbours' states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hlorank.models.adjacency import propagate
from hlorank.models.compression.colouring import NodeStates
from hlorank.models.edges import Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing


class Convolution(Layer):
    """y_v = b + sum over kinds k of W_k sum over u in N_k(v) of a_vu x_u.

    The kinds are the node itself, and its operands and users, or its neighbours of either direction together. What
    the weights a_vu are is the `norm` of a subclass.

    Args:
        width: of states.
        shared: edges of both directions have the same weights.

    Attributes:
        norm: of the edges.
        own_weights: the node itself has weights of its own; otherwise it is one of its neighbours.
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
        """The dense form: (nodes, configurations, width) to the same shape."""
        edges, weights = segment.edges.normed(self.norm, self.shared), self._weights
        messages = (propagate(linear(x, weights[w]), part) for w, part in zip(self.weight_of, edges.parts, strict=True))
        return sum(messages, start=self._bias)

    def spread(self, state: NodeStates, segment: Segment) -> NodeStates:
        """The same, where the configurations reach one edge farther than before.

        A row before is multiplied by all weights at once, and a row after sums what it receives of them.
        """
        neighbourhood = segment.edges.normed(self.norm, self.shared).neighbourhood
        hops, reached = state.next_reach(segment)
        rows = state.rows.spread(neighbourhood, reached)
        products = linear(state.values, torch.cat(list(self._weights)))
        products = products.view(len(self.maps) * len(state.rows), -1)
        messages = rows.messages(state.rows, neighbourhood, self.weight_of, products.device)
        return NodeStates(propagate(products, messages) + self._bias, rows, hops)
