"""The interface of layers, and layers without edges: of single states, norms, dropout."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.config import ConfigError
from hlorank.models.compression.declarations import EdgeKind, Mix, Mixing
from hlorank.models.compression.plan import DenseIndex, MaskIndex, StepIndex

_EPSILON = 1e-5
_REDUCTION = 8


class Layer(nn.Module):
    """A layer of the cost model.

    A layer declares its `mixing`, from which follow the states that it reads and the index in the plan:

    - ROW: (states, width), each state by itself.
    - NEIGHBOURS: (colours before, width), with a `QuotientGraph` to the colours after, or in the form of
      `edges`, `QuotientEdges` or `QuotientPieces`.
    - SEGMENT: the dense form, (nodes, configurations, width), with such a graph of it if `edges` is not None. All
      layers after it are dense, too.
    - CONFIGURATIONS: (colours, width), with a `NodeIndex`.
    """

    mixing: ClassVar[Mixing]  # the states on which a new state depends
    by_node: ClassVar[bool] = False  # a ROW layer gets a `MaskIndex`
    widens: ClassVar[int] = 1  # factor by which the states after the layer are wider than the states before it
    edges: EdgeKind | None = None  # the edges that it uses, if it uses any

    @property
    def declaration(self) -> Mix:
        """The declaration of the layer, for plans."""
        return Mix(self.mixing, self.edges, self.by_node)

    def forward(self, x: Tensor, index: Any) -> Tensor:
        """Compute the new states, in the form of x; (colours after, width) with NEIGHBOURS."""
        raise NotImplementedError


def run(layer: Layer, values: Tensor, index: StepIndex[Tensor]) -> Tensor:
    """Run a layer on states, (states, width), along the index of its step in a plan."""
    if isinstance(index, DenseIndex):
        states = values if index.states is None else embedding(index.states, values)
        dense: Tensor = layer(states.view(index.nodes, -1, values.shape[1]), index.graph)
        return dense.flatten(0, 1)
    result: Tensor = layer(values, index)
    return result


class RowLayer(Layer):
    """A layer that computes each state by itself, with a function over the last axis, in most cases a module."""

    mixing = Mixing.ROW

    def __init__(self, module: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, _: None) -> Tensor:
        """Compute (states, width) to the same shape."""
        return self.module(x)


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


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return y = W_2 gelu(W_1 x + b_1) + b_2, (..., inputs) to (..., outputs)."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def head_width(width: int, heads: int) -> int:
    """Return the number of channels of each attention head, which must divide the width."""
    if width % heads:
        raise ConfigError(f"model.heads={heads}: set it to a divisor of model.width={width}")
    return width // heads


class Dropout(Layer):
    """Dropout with one mask for all configurations, so that they stay comparable within a step.

    In training, nodes must not share a colour, as each has another mask; see `Recipe.share`.
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
        scale, offset = (learned.to(x.dtype).repeat(x.shape[1]) for learned in (self.scale, self.offset))
        normed = torch.batch_norm(pairs, scale, offset, None, None, True, 0.0, _EPSILON, False)
        return normed.squeeze(0).squeeze(-1).t().view_as(x)
