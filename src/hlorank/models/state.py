"""The states of a segment's nodes under several configurations, each computed once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class State(NamedTuple):
    """Node states, of which only a prefix depends on the configuration.

    Attributes:
        shared: (nodes, width), the states under every configuration; the first rows, those of `varied`, mean nothing.
        varied: (reached nodes, configurations, width), the states of the first nodes under each configuration.
        hops: how many edges the configuration has spread from the configurable nodes.
    """

    shared: Tensor
    varied: Tensor
    hops: int = 0

    @classmethod
    def of(cls, dense: Tensor) -> State:
        """From the plain form, in which every node depends on the configuration."""
        return cls(dense[:, 0], dense)

    def dense(self) -> Tensor:
        """The plain form, (nodes, configurations, width)."""
        if len(self.varied) == len(self.shared):
            return self.varied
        return torch.cat([self.varied, self.unreached()[:, None].expand(-1, self.varied.shape[1], -1)])

    def unreached(self) -> Tensor:
        """The states that do not depend on the configuration, (nodes - reached nodes, width)."""
        return self.shared[len(self.varied) :]

    def only(self, nodes: Tensor) -> State:
        """The states of some nodes, of a (nodes,) bool mask."""
        return self._replace(shared=self.shared[nodes], varied=self.varied[nodes[: len(self.varied)]])
