"""Node states of a segment under several configurations, one for each colour."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import Colouring, Neighbourhood
from hlorank.models.inputs import Segment


class NodeStates(NamedTuple):
    """Node states, each distinct one once.

    Attributes:
        values: (colours, width).
        colouring: of the nodes under the configurations.
        hops: number of edges along which configurations have been passed on; None before they join.
    """

    values: Tensor
    colouring: Colouring
    hops: int | None = 0

    @classmethod
    def of_dense(cls, dense: Tensor) -> NodeStates:
        """Return the states of a dense form, (nodes, configurations, width)."""
        return cls(dense.flatten(0, 1), Colouring.identity(*dense.shape[:2]))

    def dense(self) -> Tensor:
        """Return the dense form, (nodes, configurations, width)."""
        if self.colouring.is_identity:
            return self.values.view(*self.colouring.colour_of.shape, self.values.shape[1])
        return embedding(self._tensor(self.colouring.colour_of), self.values)

    def refine(self, segment: Segment, neighbourhood: Neighbourhood) -> tuple[Colouring, int | None]:
        """Return the colouring and the `hops` after one more layer of message passing."""
        hops = None if self.hops is None else self.hops + 1
        return self.colouring.refine(neighbourhood, 0 if hops is None else segment.k_hop_prefix(hops)), hops

    def repeat(self, configurations: int) -> NodeStates:
        """Return the states of a single configuration for several, under all of which a node has the same state."""
        if self.colouring.colour_of.shape[1] == configurations:
            return self
        nodes = np.arange(len(self.colouring.colour_of))
        colouring = Colouring.of_keys(np.empty((0, configurations), dtype=np.int64), nodes)
        return NodeStates(self.dense()[:, 0], colouring, None)

    def plus(self, before: NodeStates) -> NodeStates:
        """Return the sum with earlier states, whose colouring these states' colouring refines."""
        if self.colouring.is_identity and before.colouring.is_identity:
            return self._replace(values=self.values + before.values)
        roots, starts = self.colouring.roots(before.colouring), np.arange(len(self.colouring) + 1)
        added = propagate(before.values, Adjacency(roots, starts, None, len(before.values), self.values.device))
        return self._replace(values=self.values + added)

    def restrict(self, nodes: NDArray[np.bool_]) -> NodeStates:
        """Return the states of some nodes, of a (nodes,) mask."""
        colouring, kept = self.colouring.restrict(nodes)
        return NodeStates(embedding(self._tensor(kept), self.values), colouring, self.hops)

    def first(self, count: int) -> NodeStates:
        """Return the states of the first nodes."""
        return self.restrict(np.arange(len(self.colouring.colour_of)) < count)

    def map_nodes(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to nodes that share no colour with each other.

        Args:
            function: of (some nodes, configurations, width) to the same shape.

        Returns:
            (colours, width).
        """
        varied, fixed = (function(embedding(self._tensor(part.T), self.values)) for part in self._parts())
        in_prefix = self.colouring.node < self.colouring.prefix
        node, configuration = (
            self._tensor(index[in_prefix]) for index in (self.colouring.node, self.colouring.configuration)
        )
        return torch.cat([varied[node, configuration], fixed[:, 0]])

    def sum(self) -> Tensor:
        """Return the sum over nodes, (configurations, width)."""
        if self.colouring.is_identity:
            return self.dense().sum(dim=0)
        varied, fixed = self._parts()
        index = np.concatenate([varied.ravel(), fixed.ravel()])
        starts = np.append(np.arange(len(varied) + 1) * varied.shape[1], len(index))
        sums = propagate(self.values, Adjacency(index, starts, None, len(self.values), self.values.device))
        return sums[:-1] + sums[-1]

    def max(self) -> Tensor:
        """Return the maximum over nodes, (configurations, width)."""
        if self.colouring.is_identity:
            return self.dense().amax(dim=0)
        best = [embedding_bag(self._tensor(part), self.values, mode="max") for part in self._parts() if part.size]
        return reduce(torch.maximum, best).expand(self.colouring.colour_of.shape[1], -1)

    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the colours of the prefix, (configurations, nodes), and of the other nodes, (1, nodes)."""
        colour_of, prefix = self.colouring.colour_of, self.colouring.prefix
        return colour_of[:prefix].T, colour_of[prefix:, :1].T

    def _tensor(self, index: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(index).to(self.values.device)
