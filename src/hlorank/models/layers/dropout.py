"""Dropout with one mask for all configurations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.node_states import NodeStates


class Dropout(Layer):
    """Dropout with one mask for all configurations, so that they stay comparable within a step.

    In training, nodes must not share a colour, as each has a mask of its own; see `Encoder.nodes`.

    Args:
        rate: share of the numbers that become 0; the others are scaled up.
    """

    mixing = Mixing.ROW

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def _mask(self, nodes: int, like: Tensor) -> Tensor:
        mask: Tensor = self.dropout(like.new_ones(nodes, like.shape[-1]))
        return mask

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        return x * self._mask(segment.nodes, x)[:, None]

    def forward_compressed(self, states: NodeStates, segment: Segment) -> NodeStates:
        """Compute the compressed form: each colour once."""
        if not (self.training and self.dropout.p):
            return states
        mask = self._mask(segment.nodes, states.values)
        node = torch.from_numpy(states.colouring.node).to(mask.device)
        return states._replace(values=states.values * mask[node])
