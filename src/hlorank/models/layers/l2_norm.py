"""Normalisation to unit length."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize


class L2Norm(nn.Module):
    """y = x / |x|, for each state; a state of zeros stays.

    Hamilton et al., NeurIPS 2017, arXiv 1706.02216, algorithm 1, line 7.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same shape."""
        return normalize(x, dim=-1)
