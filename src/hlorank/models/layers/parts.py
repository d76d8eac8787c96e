"""Parts that several layers are made of."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from hlorank.config import ConfigError


class L2Norm(nn.Module):
    """y = x / |x|, for each state; a state of zeros stays.

    Hamilton et al., NeurIPS 2017, arXiv 1706.02216, algorithm 1, line 7.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Compute (..., width) to the same shape."""
        return normalize(x, dim=-1)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return y = W_2 gelu(W_1 x + b_1) + b_2, (..., inputs) to (..., outputs)."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def head_width(width: int, heads: int) -> int:
    """Return the number of channels of each attention head.

    Raises:
        ConfigError: `heads` does not divide `width`.
    """
    if width % heads:
        raise ConfigError(f"model.heads={heads}: set it to a divisor of model.width={width}")
    return width // heads
