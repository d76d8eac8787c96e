"""The edges of a segment, with the weights that layers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from hlorank.models.adjacency import Adjacency
from hlorank.models.compression.colouring import Neighbourhood


class Norm(Enum):
    """The weight of what a node v receives from a neighbour u.

    Attributes:
        MEAN: 1 / the number of neighbours of v; v itself weighs 1.
        SYMMETRIC: 1 / sqrt(d_v d_u), d = 1 + the number of neighbours; v itself weighs 1 / d_v.
        SUM: 1, and so does v itself.
    """

    MEAN = "mean"
    SYMMETRIC = "symmetric"
    SUM = "sum"


@dataclass(frozen=True, eq=False)
class NormedEdges:
    """Edges with weights.

    Attributes:
        parts: matrices nodes x nodes, one for each edge type; that of the node itself comes first and is diagonal.
    """

    parts: Sequence[Adjacency]

    @cached_property
    def neighbourhood(self) -> Neighbourhood:
        """The edges of all types, grouped by the node that receives."""
        joined = csr_array(hstack([part.matrix for part in self.parts], format="csr"))
        nodes = joined.shape[0]
        edge_type, source = np.divmod(joined.indices, nodes)
        _, pair = np.unique(np.stack([edge_type, joined.data]), axis=1, return_inverse=True)
        hashes = np.random.default_rng(1).integers(2**64, size=len(source), dtype=np.uint64)[pair]
        hashed = csr_array((hashes, source, joined.indptr), shape=(nodes, nodes))
        return Neighbourhood(joined.indptr, source, edge_type, joined.data, hashed)


class Edges:
    """The edges of a segment.

    Args:
        ends: (edges, 2) int64, a node that consumes and the operand that it consumes.
        nodes: number of nodes.
        degrees: (nodes,) int64, the number of operands of each node, and the same of users, in the whole graph where
            the segment has a halo and so a part of their edges; None counts `ends`.
        device: the device of the states.
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
        """Return some of the edges, of a (edges,) mask; degrees count only these."""
        return Edges(self.ends[kept], self.nodes, None, self.device)

    def normed(self, norm: Norm, shared: bool) -> NormedEdges:
        """Return the edges with their weights.

        Args:
            norm: the normalization of the weights.
            shared: edges of both directions are of one type, and count together.
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
        nodes = np.arange(self.nodes)
        parts = [Adjacency.of_edges(nodes, nodes, own, self.nodes, self.device)]
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
