"""Squeeze-and-excitation."""

from __future__ import annotations

from torch import Tensor, nn

from hlorank.models.compression.declarations import Mixing
from hlorank.models.layers.layer import Layer

_REDUCTION = 16


class SqueezeExcite(Layer):
    """Channel attention: a gate for each channel, from the mean over a segment's nodes.

    y = x * sigmoid(W_2 relu(W_1 s + b_1) + b_2), s = mean over nodes of x, for each configuration (Hu et al.,
    CVPR 2018, arXiv 1709.01507, equations 2 to 4, with its reduction ratio 16).
    """

    mixing = Mixing.SEGMENT

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = max(1, width // _REDUCTION)
        self.gate = nn.Sequential(nn.Linear(width, squeezed), nn.ReLU(), nn.Linear(squeezed, width), nn.Sigmoid())

    def forward(self, x: Tensor, _: None) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        gated: Tensor = x * self.gate(x.mean(dim=0))
        return gated
