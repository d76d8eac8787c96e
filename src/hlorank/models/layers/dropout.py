"""Dropout with one mask for all configurations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hlorank.models.compression.colouring import NodeStates
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing


class Dropout(Layer):
    """Dropout whose mask configurations share, so that they stay comparable within a step.

    Its states must stand apart from those of other nodes in training; see `Encoder.nodes`.

    Args:
        rate: the share of numbers that become 0; the others are scaled up.
    """

    mixing = Mixing.ROW

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def _mask(self, nodes: int, like: Tensor) -> Tensor:
        mask: Tensor = self.dropout(like.new_ones(nodes, like.shape[-1]))
        return mask

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        return x * self._mask(segment.nodes, x)[:, None]

    def spread(self, state: NodeStates, segment: Segment) -> NodeStates:
        """The same, once for each distinct state."""
        if not (self.training and self.dropout.p):
            return state
        mask = self._mask(segment.nodes, state.values)
        node = torch.from_numpy(state.rows.node).to(mask.device)
        return state._replace(values=state.values * mask[node])
