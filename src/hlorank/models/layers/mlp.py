"""The multilayer perceptron that other layers are made of."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Makes y = W_2 gelu(W_1 x + b_1) + b_2, (..., inputs) to (..., outputs)."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
