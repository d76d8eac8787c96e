"""Instance normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer

_EPSILON = 1e-5


class InstanceNorm(Layer):
    """Normalization over a segment's nodes.

    y = g (x - m) / sqrt(s + 1e-5) + b, m and s the mean and the variance over nodes of x, for each configuration and
    channel (Ulyanov et al., arXiv 1607.08022), with a learned scale g and offset b for each channel.
    """

    mixing = Mixing.SEGMENT

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.offset = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, _: None) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        # A batch norm of the nodes, whose channels are pairs of a configuration and a channel, in the memory format
        # channels last. PyTorch's instance norm needs the nodes on the last axis, which takes a copy.
        pairs = x.flatten(1).t().unsqueeze(-1).unsqueeze(0)
        scale, offset = (one.to(x.dtype).repeat(x.shape[1]) for one in (self.scale, self.offset))
        normed = torch.batch_norm(pairs, scale, offset, None, None, True, 0.0, _EPSILON, False)
        return normed.squeeze(0).squeeze(-1).t().view_as(x)
