"""The states of a segment's nodes under several configurations, each distinct one computed once."""

from __future__ import annotations

from collections.abc import Callable
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
from hlorank.models.inputs import Neighbourhood


@dataclass(frozen=True, eq=False)
class Rows:
    """Which states of a segment differ, so that each distinct one has one row.

    Nodes under configurations share a row where all that has reached them is the same: how they look, the
    configurations near them, and their neighbours. Rows are ordered by where they first stand in `every`.

    Attributes:
        every: (nodes, configurations) int64, the row of each node under each configuration.
        reached: how many nodes configurations have reached; these nodes come first, and each other node has one row.
        first: (rows,) int64, where each row first stands in the flat `every`.
    """

    every: NDArray[np.int64]
    reached: int
    first: NDArray[np.int64]

    @classmethod
    def plain(cls, nodes: int, configurations: int) -> Rows:
        """Every node has a row for every configuration."""
        every = np.arange(nodes * configurations)
        return cls(every.reshape(nodes, configurations), nodes, every)

    @classmethod
    def distinct(cls, reached: NDArray[Any], unreached: NDArray[Any]) -> Rows:
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

    def previous(self, before: Rows, device: torch.device) -> Adjacency:
        """From each row to the one that it was before the configurations spread."""
        return Adjacency(before.every.ravel()[self.first], np.arange(len(self) + 1), None, len(before), device)

    def spread(self, edges: Neighbourhood, reached: int) -> Rows:
        """The rows after the configurations have spread along one edge.

        Args:
            edges: of the segment.
            reached: how many nodes they have reached then.
        """
        # Rows get random names. Their sums over two neighbourhoods that differ agree with a chance below 2^-50.
        names = np.random.default_rng(0).integers(2**64, size=len(self), dtype=np.uint64)[self.every]
        keys = edges.names @ names
        return Rows.distinct(keys[:reached], keys[reached:, 0])

    def messages(self, before: Rows, edges: Neighbourhood, device: torch.device) -> Adjacency:
        """What each row receives in one layer of message passing.

        The rows before stand there three times each: as what a node gives to itself, to its users, to its operands.
        """
        degree = np.diff(edges.starts)[self.node]
        stops = np.cumsum(degree)
        row = np.repeat(np.arange(len(self)), degree)
        entry = np.arange(len(row)) + (edges.starts[self.node] - stops + degree)[row]
        column = 3 * before.every[edges.source[entry], self.configuration[row]] + edges.kind[entry]
        return Adjacency(column, np.append(0, stops), edges.weight[entry], 3 * len(before), device)

    def only(self, nodes: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.int64]]:
        """The rows of some nodes, of a (nodes,) mask, numbered anew, and which of the rows before they are."""
        reached = int(nodes[: self.reached].sum())
        every = self.every[nodes]
        rows = Rows.distinct(every[:reached], every[reached:, 0])
        return rows, every.ravel()[rows.first]


class State(NamedTuple):
    """Node states, each distinct one computed once.

    Attributes:
        values: (rows, width).
        rows: whose states these are.
        hops: how many edges the configurations have spread from the configurable nodes.
    """

    values: Tensor
    rows: Rows
    hops: int = 0

    @classmethod
    def of(cls, dense: Tensor) -> State:
        """From the plain form, in which every node has a state under every configuration."""
        return cls(dense.flatten(0, 1), Rows.plain(*dense.shape[:2]))

    @property
    def is_plain(self) -> bool:
        """Whether no two nodes or configurations share a row."""
        return len(self.rows) == self.rows.every.size

    def dense(self) -> Tensor:
        """The plain form, (nodes, configurations, width)."""
        if self.is_plain:
            return self.values.view(*self.rows.every.shape, -1)
        return embedding(self._tensor(self.rows.every), self.values)

    def only(self, nodes: NDArray[np.bool_]) -> State:
        """The states of some nodes, of a (nodes,) mask."""
        rows, kept = self.rows.only(nodes)
        return State(embedding(self._tensor(kept), self.values), rows, self.hops)

    def map_nodes(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows of a function of nodes that share none, (some nodes, configurations, width) to the same shape."""
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
