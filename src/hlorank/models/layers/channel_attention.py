"""Channel attention of single nodes."""

from __future__ import annotations

from torch import Tensor, nn

_REDUCTION = 8


class ChannelAttention(nn.Module):
    """A gate for each channel of a state, from all its channels.

    y = x * sigmoid(W_2 relu(W_1 x + b_1) + b_2), with an inner width of an eighth (TGraph, arXiv 2405.16623: it is
    squeeze-and-excitation without the mean over nodes).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(1, width // _REDUCTION)
        self.gate = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Compute (..., width) to the same shape."""
        gated: Tensor = x * self.gate(x)
        return gated
