"""Attention over the configurations that are ranked together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hlorank.models.compression.plan import NodeIndex
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer, map_nodes

_FIRST_TEMPERATURE = 0.5


class ConfigurationAttention(Layer):
    """Cross-configuration attention: each channel of a node compares the configurations.

    y_c = W [x_c ; x_c * a_c] + b, a_c = C exp(x_c / T) / sum over c' of exp(x_c' / T), for each node and channel, over
    the C configurations ranked together, with a learned temperature T above 0 (TGraph, arXiv 2405.16623, where W and b
    are those of the next layer). The factor C, which TGraph lacks, makes the weights average 1 however many are ranked
    together, so that a model can rank more of them than it was trained with.
    """

    mixing = Mixing.CONFIGURATIONS

    def __init__(self, width: int) -> None:
        super().__init__()
        self.joined = nn.Linear(2 * width, width)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(_FIRST_TEMPERATURE)))

    def _weights(self, x: Tensor) -> Tensor:
        return x.shape[1] * torch.softmax(x / self.log_temperature.exp(), dim=1)

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to the same shape; configurations of one colour have equal weights."""
        weights = map_nodes(self._weights, x, index)
        result: Tensor = self.joined(torch.cat([x, weights * x], dim=-1))
        return result
