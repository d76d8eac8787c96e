"""Dropout with one mask for all configurations."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.models.compression.plan import MaskIndex
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer


class Dropout(Layer):
    """Dropout with one mask for all configurations, so that they stay comparable within a step.

    In training, nodes must not share a colour, as each has a mask of its own; see `Recipe.share`.

    Args:
        rate: share of the numbers that become 0; the others are scaled up.
    """

    mixing = Mixing.ROW
    by_node = True

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor, index: MaskIndex[Tensor]) -> Tensor:
        """Compute (states, width) to the same shape."""
        if not (self.training and self.dropout.p):
            return x
        mask: Tensor = self.dropout(x.new_ones(index.nodes, x.shape[-1]))
        if index.node is None:
            return (x.view(index.nodes, -1, x.shape[-1]) * mask[:, None]).view_as(x)
        return x * embedding(index.node, mask)
