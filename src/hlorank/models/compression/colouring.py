"""The states of a segment's nodes under several configurations, each distinct one computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.edges import Neighbourhood
from hlorank.models.inputs import Segment


class Received(NamedTuple):
    """What the rows after a layer of message passing receive from the rows before it.

    Attributes:
        starts: (rows + 1,) where the entries of each row start.
        row: (entries,) the row after.
        source: (entries,) the row before.
        kind: (entries,) of edge, as in `Neighbourhood`.
        weight: (entries,) float64.
    """

    starts: NDArray[np.int64]
    row: NDArray[np.int64]
    source: NDArray[np.int64]
    kind: NDArray[np.int32]
    weight: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Colouring:
    """Which states of a segment differ, so that each distinct one has one row.

    Nodes under configurations share a row where all that has reached them is the same: how they look, the
    configurations near them, and their neighbours. Colouring are ordered by where they first stand in `every`.

    Attributes:
        every: (nodes, configurations) int64, the row of each node under each configuration.
        reached: how many nodes configurations have reached; these nodes come first, and each other node has one row.
        first: (rows,) int64, where each row first stands in the flat `every`.
    """

    every: NDArray[np.int64]
    reached: int
    first: NDArray[np.int64]

    @classmethod
    def plain(cls, nodes: int, configurations: int) -> Colouring:
        """Every node has a row for every configuration."""
        every = np.arange(nodes * configurations)
        return cls(every.reshape(nodes, configurations), nodes, every)

    @classmethod
    def distinct(cls, reached: NDArray[Any], unreached: NDArray[Any]) -> Colouring:
        """A row for each distinct key.

        Args:
            reached: (reached nodes, configurations), a key for each node under each configuration.
            unreached: (nodes - reached nodes,) of the same dtype, a key for each other node.
        """
        nodes, configurations = reached.shape
        number = pd.factorize(np.concatenate([reached.ravel(), unreached]))[0]
        first = np.flatnonzero(np.diff(np.maximum.accumulate(number), prepend=-1))
        varied, fixed = number[: reached.size].reshape(reached.shape), number[reached.size :, None]
        every = np.concatenate([varied, np.broadcast_to(fixed, (len(fixed), configurations))])
        outside = nodes * configurations + (first - reached.size) * configurations
        return cls(every, nodes, np.where(first < reached.size, first, outside))

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def node(self) -> NDArray[np.int64]:
        """(rows,) the first node of each row."""
        return np.asarray(self.first // self.every.shape[1])

    @cached_property
    def configuration(self) -> NDArray[np.int64]:
        """(rows,) the first configuration that this node has it under."""
        return np.asarray(self.first % self.every.shape[1])

    def previous(self, before: Colouring, device: torch.device) -> Adjacency:
        """From each row to the one that it was before the configurations spread."""
        return Adjacency(before.every.ravel()[self.first], np.arange(len(self) + 1), None, len(before), device)

    def spread(self, edges: Neighbourhood, reached: int) -> Colouring:
        """The rows after the configurations have spread along one edge.

        Args:
            edges: of the segment.
            reached: how many nodes they have reached then.
        """
        # Colouring get random names. Their sums over two neighbourhoods that differ agree with a chance below 2^-50.
        names = np.random.default_rng(0).integers(2**64, size=len(self), dtype=np.uint64)[self.every]
        keys = edges.names @ names
        return Colouring.distinct(keys[:reached], keys[reached:, 0])

    def received(self, before: Colouring, edges: Neighbourhood) -> Received:
        """What each row receives in one layer of message passing, one row after the other.

        Args:
            before: the rows before the layer.
            edges: of the segment.
        """
        degree = np.diff(edges.starts)[self.node]
        stops = np.cumsum(degree)
        row = np.repeat(np.arange(len(self)), degree)
        entry = np.arange(len(row)) + (edges.starts[self.node] - stops + degree)[row]
        source = before.every[edges.source[entry], self.configuration[row]]
        return Received(np.append(0, stops), row, source, edges.kind[entry], edges.weight[entry])

    def messages(
        self, before: Colouring, edges: Neighbourhood, weight_of: Sequence[int], device: torch.device
    ) -> Adjacency:
        """What each row sums up in one layer of message passing, of the rows before under each weight.

        Args:
            before: the rows before the layer; each stands there as often as there are weights, one after the other.
            edges: of the segment.
            weight_of: which weight each kind of edge has.
            device: where states are.
        """
        received, weights = self.received(before, edges), max(weight_of) + 1
        column = weights * received.source + np.asarray(weight_of)[received.kind]
        return Adjacency(column, received.starts, received.weight, weights * len(before), device)

    def only(self, nodes: NDArray[np.bool_]) -> tuple[Colouring, NDArray[np.int64]]:
        """The rows of some nodes, of a (nodes,) mask, numbered anew, and which of the rows before they are."""
        reached = int(nodes[: self.reached].sum())
        every = self.every[nodes]
        rows = Colouring.distinct(every[:reached], every[reached:, 0])
        return rows, every.ravel()[rows.first]


class NodeStates(NamedTuple):
    """Node states, each distinct one computed once.

    Attributes:
        values: (rows, width).
        rows: whose states these are.
        hops: how many edges the configurations have spread from the configurable nodes; None before they join.
    """

    values: Tensor
    rows: Colouring
    hops: int | None = 0

    @classmethod
    def of(cls, dense: Tensor) -> NodeStates:
        """From the dense form, in which every node has a state under every configuration."""
        return cls(dense.flatten(0, 1), Colouring.plain(*dense.shape[:2]))

    @property
    def is_plain(self) -> bool:
        """Whether no two nodes or configurations share a row."""
        return len(self.rows) == self.rows.every.size

    def next_reach(self, segment: Segment) -> tuple[int | None, int]:
        """The `hops` of the state after one more layer of message passing, and how many nodes they reach."""
        return (None, 0) if self.hops is None else (self.hops + 1, segment.reached(self.hops + 1))

    def repeated(self, configurations: int) -> NodeStates:
        """The states of a single configuration, for that many of them; a node has one row for them all."""
        if self.rows.every.shape[1] == configurations:
            return self
        nodes = len(self.rows.every)
        rows = Colouring.distinct(np.empty((0, configurations), dtype=np.int64), np.arange(nodes))
        return NodeStates(self.dense()[:, 0], rows, None)

    def plus(self, before: NodeStates) -> NodeStates:
        """The sum with a state from which this one comes, so that nodes that share a row here shared one there."""
        if self.is_plain and before.is_plain:
            return self._replace(values=self.values + before.values)
        added = propagate(before.values, self.rows.previous(before.rows, self.values.device))
        return self._replace(values=self.values + added)

    def dense(self) -> Tensor:
        """The dense form, (nodes, configurations, width)."""
        if self.is_plain:
            return self.values.view(*self.rows.every.shape, self.values.shape[1])
        return embedding(self._tensor(self.rows.every), self.values)

    def only(self, nodes: NDArray[np.bool_]) -> NodeStates:
        """The states of some nodes, of a (nodes,) mask."""
        rows, kept = self.rows.only(nodes)
        return NodeStates(embedding(self._tensor(kept), self.values), rows, self.hops)

    def first(self, count: int) -> NodeStates:
        """The states of the first nodes."""
        return self.only(np.arange(len(self.rows.every)) < count)

    def map_nodes(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Colouring of a function of nodes that share none, (some nodes, configurations, width) to the same shape."""
        reached, unreached = (function(embedding(self._tensor(part.T), self.values)) for part in self._parts())
        first = self.rows.node < self.rows.reached
        place = self._tensor(self.rows.node[first]), self._tensor(self.rows.configuration[first])
        return torch.cat([reached[place], unreached[:, 0]])

    def sum(self) -> Tensor:
        """The sum over nodes, (configurations, width)."""
        if self.is_plain:
            return self.dense().sum(dim=0)
        reached, unreached = self._parts()
        columns = np.concatenate([reached.ravel(), unreached.ravel()])
        starts = np.append(np.arange(len(reached) + 1) * reached.shape[1], len(columns))
        sums = propagate(self.values, Adjacency(columns, starts, None, len(self.values), self.values.device))
        return sums[:-1] + sums[-1]

    def max(self) -> Tensor:
        """The maximum over nodes, (configurations, width)."""
        if self.is_plain:
            return self.dense().amax(dim=0)
        best = [embedding_bag(self._tensor(part), self.values, mode="max") for part in self._parts() if part.size]
        return reduce(torch.maximum, best).expand(self.rows.every.shape[1], -1)

    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the nodes that configurations have reached, and of the others for all configurations at once."""
        every, reached = self.rows.every, self.rows.reached
        return every[:reached].T, every[reached:, :1].T

    def _tensor(self, index: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(index).to(self.values.device)
