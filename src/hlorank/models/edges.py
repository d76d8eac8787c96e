"""The edges of a segment, weighted as layers ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from hlorank.models.adjacency import Adjacency


class Norm(Enum):
    """How much what a node v receives of a neighbour u weighs.

    Attributes:
        MEAN: 1 / the number of neighbours of v; v itself weighs 1.
        SYMMETRIC: 1 / sqrt(d_v d_u), d = 1 + the number of neighbours; v itself weighs 1 / d_v.
        SUM: 1, and so does v itself.
    """

    MEAN = "mean"
    SYMMETRIC = "symmetric"
    SUM = "sum"


class Neighbourhood(NamedTuple):
    """The edges of a segment as a list of what each node receives, one node after the other.

    Attributes:
        starts: (nodes + 1,) where each node's entries start.
        source: (entries,) the node received from.
        kind: (entries,) 0 the node itself; then 1 an operand and 2 a user, or 1 either.
        weight: (entries,) float64.
        names: nodes x nodes, uint64, the entries with a random number for each pair of kind and weight.
    """

    starts: NDArray[np.int32]
    source: NDArray[np.int32]
    kind: NDArray[np.int32]
    weight: NDArray[np.float64]
    names: csr_array


@dataclass(frozen=True, eq=False)
class NormedEdges:
    """Edges with weights.

    Attributes:
        parts: matrices nodes x nodes, one for each kind; the first is diagonal.
    """

    parts: Sequence[Adjacency]

    @cached_property
    def neighbourhood(self) -> Neighbourhood:
        """What each node receives, of all kinds."""
        joined = csr_array(hstack([part.matrix for part in self.parts], format="csr"))
        nodes = joined.shape[0]
        kind, source = np.divmod(joined.indices, nodes)
        _, role = np.unique(np.stack([kind, joined.data]), axis=1, return_inverse=True)
        names = np.random.default_rng(1).integers(2**64, size=len(source), dtype=np.uint64)[role]
        named = csr_array((names, source, joined.indptr), shape=(nodes, nodes))
        return Neighbourhood(joined.indptr, source, kind, joined.data, named)


class Edges:
    """The edges of a segment.

    Args:
        ends: (edges, 2) int64, a node that consumes and the operand that it consumes.
        nodes: how many there are.
        degrees: of each node, (nodes,) int64, how many operands and how many users it has where that is more than the
            edges show: those of the whole graph, of which a halo shows a part; None counts the edges.
        device: where states are.
    """

    def __init__(
        self,
        ends: NDArray[np.int64],
        nodes: int,
        degrees: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        device: torch.device,
    ) -> None:
        self.ends = ends
        self.nodes = nodes
        self.device = device
        self._whole = degrees
        self._normed: dict[tuple[Norm, bool], NormedEdges] = {}

    def __len__(self) -> int:
        return len(self.ends)

    def only(self, kept: NDArray[np.bool_]) -> Edges:
        """Some of the edges, of a (edges,) mask; only these count."""
        return Edges(self.ends[kept], self.nodes, None, self.device)

    def normed(self, norm: Norm, shared: bool) -> NormedEdges:
        """The edges with their weights.

        Args:
            norm: says what they weigh.
            shared: edges of either direction are of one kind, and count together.
        """
        if (norm, shared) not in self._normed:
            self._normed[norm, shared] = self._weighted(norm, shared)
        return self._normed[norm, shared]

    def _weighted(self, norm: Norm, shared: bool) -> NormedEdges:
        user, operand = self.ends.T
        counts = tuple(np.bincount(end, minlength=self.nodes) for end in (user, operand))
        operands, users = counts if self._whole is None else self._whole
        every = operands + users
        own = np.ones(self.nodes) if norm is not Norm.SYMMETRIC else 1 / (1 + every)
        here = np.arange(self.nodes)
        parts = [Adjacency.of_edges(here, here, own, self.nodes, self.device)]
        both = np.concatenate([user, operand]), np.concatenate([operand, user])
        directed = [(*both, every)] if shared else [(user, operand, operands), (operand, user, users)]
        for node, neighbour, degree in directed:
            if norm is Norm.MEAN:
                weight = 1 / np.maximum(1, degree)[node]
            elif norm is Norm.SYMMETRIC:
                weight = 1 / np.sqrt((1 + every[node]) * (1.0 + every[neighbour]))
            else:
                weight = np.ones(len(node))
            parts.append(Adjacency.of_edges(node, neighbour, weight, self.nodes, self.device))
        return NormedEdges(parts)
