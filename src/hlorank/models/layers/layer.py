"""The interface of layers: the mixing of states, the dense form and the compressed form."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from torch import Tensor, nn

from hlorank.models.inputs import Segment
from hlorank.models.node_states import NodeStates


class Mixing(Enum):
    """States that the new state of a node under a configuration depends on, besides its own state.

    Attributes:
        ROW: none.
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

    A layer needs its `mixing` and `forward`, the dense form, which computes every node under every configuration. It
    may also define `forward_compressed`, which computes each colour once; otherwise that form, and all layers after
    it, are dense. Both forms give equal results.

    Attributes:
        mixing: the states on which a new state depends.
    """

    mixing: ClassVar[Mixing]

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        raise NotImplementedError

    def forward_compressed(self, states: NodeStates, segment: Segment) -> NodeStates:
        """Compute the compressed form, from one state for each colour; here by the dense form."""
        return NodeStates.of_dense(self(states.dense(), segment))

    @property
    def dense_only(self) -> bool:
        """True for a layer without a compressed form of its own."""
        return type(self).forward_compressed is Layer.forward_compressed


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
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        result: Tensor = self.module(x)
        return result

    def forward_compressed(self, states: NodeStates, _: Segment) -> NodeStates:
        """Compute the compressed form: each colour once."""
        return states._replace(values=self.module(states.values))
