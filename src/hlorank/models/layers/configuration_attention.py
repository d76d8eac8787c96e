"""Attention over the configurations that are ranked together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.state import State

_FIRST_TEMPERATURE = 0.5


class ConfigurationAttention(Layer):
    """Cross-configuration attention, with a residual: each channel of a node compares the configurations.

    y_c = x_c + W [z_c ; z_c * a_c] + b, a_c = C exp(z_c / T) / sum over c' of exp(z_c' / T), z = LayerNorm(x), for
    each node and channel, over the C configurations ranked together, with a learned temperature T (after TGraph,
    arXiv 2405.16623). The factor C, which TGraph lacks, makes the weights average 1 however many are ranked together,
    so that a model can rank more of them than it was trained with.
    """

    mixing = Mixing.CONFIGURATIONS

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.joined = nn.Linear(2 * width, width)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(_FIRST_TEMPERATURE)))

    def _weights(self, z: Tensor) -> Tensor:
        return z.shape[1] * torch.softmax(z / self.log_temperature.exp(), dim=1)

    def forward(self, x: Tensor, _: Segment) -> Tensor:
        """The plain form: (nodes, configurations, width) to the same shape."""
        z = self.norm(x)
        update: Tensor = self.joined(torch.cat([z, self._weights(z) * z], dim=-1))
        return x + update

    def spread(self, state: State, _: Segment) -> State:
        """The same: configurations with equal states have equal weights, all of them 1 where no other has come."""
        z = self.norm(state.values)
        weights = state._replace(values=z).map_nodes(self._weights)
        update: Tensor = self.joined(torch.cat([z, weights * z], dim=-1))
        return state._replace(values=state.values + update)
