"""Attention over the configurations that are ranked together."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hlorank.models.compression.plan import NodeIndex
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer, map_nodes

_FIRST_TEMPERATURE = 0.5


class _Compare(torch.autograd.Function):
    """C x softmax over configurations of k x; half of the time of its operations one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor) -> Tensor:
        share = torch.softmax(k * x, dim=1)
        ctx.save_for_backward(x, k, share)
        return (share * x).mul_(x.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, k, share = ctx.saved_tensors
        direct = (gradients[0] * share).mul_(x.shape[1])
        through = direct * x
        through.addcmul_(share, through.sum(dim=1, keepdim=True), value=-1)
        return torch.addcmul(direct, through, k), torch.sum(through * x).to(k.dtype)


class ConfigurationGate(Layer):
    """Cross-configuration attention: each channel of a node compares the configurations.

    y_c = [x_c ; x_c * a_c], a_c = C exp(x_c / T) / sum over c' of exp(x_c' / T), for each node and channel, over the C
    configurations ranked together, with a learned temperature T above 0 (TGraph, arXiv 2405.16623). The factor C, which
    TGraph lacks, makes the weights average 1 however many are ranked together, so that a model can rank more of them
    than it was trained with.
    """

    mixing = Mixing.CONFIGURATIONS

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(_FIRST_TEMPERATURE)))

    def _compare(self, x: Tensor) -> Tensor:
        k = (-self.log_temperature).exp()
        compared: Tensor = _Compare.apply(x, k)  # type: ignore[no-untyped-call] # untyped in PyTorch
        return compared

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to (colours, 2 width); configurations of one colour have equal weights."""
        return torch.cat([x, map_nodes(self._compare, x, index)], dim=-1)


class ConfigurationAttention(ConfigurationGate):
    """As `ConfigurationGate`, with a linear map of y_c to the width of x_c."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.joined = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to the same shape."""
        result: Tensor = self.joined(super().forward(x, index))
        return result
