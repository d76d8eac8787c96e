"""What every layer has: how far it mixes, and two forms with equal results."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from torch import Tensor, nn

from hlorank.models.compression.colouring import NodeStates
from hlorank.models.inputs import Segment


class Mixing(Enum):
    """What the new state of a node under a configuration depends on, besides its own state under it.

    Attributes:
        ROW: nothing.
        NEIGHBOURS: the states of the neighbours under the same configuration.
        SEGMENT: the states of all nodes of the segment under the same configuration.
        CONFIGURATIONS: the states of the node under the other configurations.
    """

    ROW = "row"
    NEIGHBOURS = "neighbours"
    SEGMENT = "segment"
    CONFIGURATIONS = "configurations"


class Layer(nn.Module):
    """A layer of the cost model.

    `forward` is the dense form: it computes every node under every configuration. `spread` gives the configuration
    axis only to nodes that a configurable node can reach; a layer that mixes over the segment has no such form.

    Attributes:
        mixing: how far it mixes.
    """

    mixing: ClassVar[Mixing]

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        raise NotImplementedError

    def spread(self, state: NodeStates, segment: Segment) -> NodeStates:
        """The same, where nodes that no configuration reaches are computed once."""
        raise NotImplementedError


class RowLayer(Layer):
    """A layer that computes each state by itself, with a module over the last axis.

    Args:
        module: (..., width) to the same shape.
    """

    mixing = Mixing.ROW

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, _: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        result: Tensor = self.module(x)
        return result

    def spread(self, state: NodeStates, _: Segment) -> NodeStates:
        """The same, once for each distinct state."""
        return state._replace(values=self.module(state.values))
