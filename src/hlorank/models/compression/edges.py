"""The edges of a segment, with the weights that layers of message passing use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.config import Directions


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


class EdgeForm(Enum):
    """The form in which a layer of message passing reads its edges.

    Attributes:
        MATRIX: a matrix; what is received is a weighted sum of states, for all configurations of a node at once.
        DIRECTIONS: a list of edges for each direction, as operators of PyTorch Geometric take them.
        PIECES: one list of all edges, which is computed in pieces.
    """

    MATRIX = "matrix"
    DIRECTIONS = "directions"
    PIECES = "pieces"


@dataclass(frozen=True)
class EdgeKind:
    """The edges that a layer of message passing uses.

    Attributes:
        norm: the normalization of their weights.
        directions: as the setting `model.directions`: edges from operands and from users are of a type each, or of one
            type and count together, or those from users alone are used.
        itself: every node receives from itself along an edge, type 0; else the layer adds a node's own state itself.
        own_type: these edges are of a type of their own; else, unless directions are separate, all are of one type.
        to_configurable: only the edges to configurable nodes, beside those of nodes from themselves.
        form: how the layer reads them.
    """

    norm: Norm
    directions: Directions
    itself: bool = True
    own_type: bool = True
    to_configurable: bool = False
    form: EdgeForm = EdgeForm.MATRIX

    @property
    def types(self) -> int:
        """The number of edge types."""
        return (self.itself and self.own_type) + self.neighbour_types

    @property
    def neighbour_types(self) -> int:
        """The number of edge types but that of nodes from themselves."""
        return 2 if self.directions == "separate" else 1


class Neighbourhood(NamedTuple):
    """Edges of a segment, grouped by the node that receives, and of each node by their type.

    Attributes:
        starts: (nodes + 1,) index of the first entry of each node, which is from the node itself.
        source: (entries,) the node that sends.
        edge_type: (entries,) 0 the node itself; then 1 an operand and 2 a user, or 1 either.
        weight: (entries,) float64.
        hashes: nodes x nodes, uint64, the entries with a random number for each pair of edge type and weight.
    """

    starts: NDArray[np.int64]
    source: NDArray[np.int64]
    edge_type: NDArray[np.int64]
    weight: NDArray[np.float64]
    hashes: csr_array


class Edges:
    """The edges of a segment.

    Args:
        ends: (edges, 2) int64, a node that consumes and the operand that it consumes.
        nodes: number of nodes.
        configurable: number of configurable nodes, which are the first ones.
        degrees: (nodes,) int64, the number of operands of each node, and the same of users, in the whole graph where
            the segment has a halo and so a part of their edges; None counts `ends`.
    """

    def __init__(
        self,
        ends: NDArray[np.int64],
        nodes: int,
        configurable: int,
        degrees: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> None:
        self.ends = ends
        self.nodes = nodes
        self.configurable = configurable
        self._whole = degrees
        self._neighbourhoods: dict[EdgeKind, Neighbourhood] = {}

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def partial(self) -> bool:
        """True if degrees count edges that the segment lacks."""
        return self._whole is not None

    @property
    def degrees(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(nodes,) int64, the number of operands of each node, and the same of users."""
        if self._whole is not None:
            return self._whole
        operands, users = (np.bincount(end, minlength=self.nodes) for end in self.ends.T)
        return operands, users

    def only(self, kept: NDArray[np.bool_]) -> Edges:
        """Return some of the edges, of a (edges,) mask; degrees count only these."""
        return Edges(self.ends[kept], self.nodes, self.configurable, None)

    def neighbourhood(self, kind: EdgeKind) -> Neighbourhood:
        """Return the edges of a kind with their weights, made once."""
        if kind not in self._neighbourhoods:
            self._neighbourhoods[kind] = self._weighted(kind)
        return self._neighbourhoods[kind]

    def _weighted(self, kind: EdgeKind) -> Neighbourhood:
        user, operand = self.ends.T
        operands, users = self.degrees
        nodes, received, degrees = np.arange(self.nodes), [(user, operand), (operand, user)], [operands, users]
        if kind.directions == "users":
            received, degrees = received[1:], degrees[1:]
        every = np.sum(degrees, axis=0)
        target, source = (np.concatenate([nodes, *ends]) for ends in zip(*received, strict=True))
        types = [1, kind.neighbour_types][: len(received)]
        edge_type = np.repeat([0, *types], [self.nodes, *[len(user)] * len(received)])
        if kind.norm is Norm.MEAN:
            of_type = [np.ones(self.nodes), *(degrees if kind.neighbour_types > 1 else [every])]
            weight = 1 / np.maximum(1, np.stack(of_type)[edge_type, target])
        elif kind.norm is Norm.SYMMETRIC:
            weight = 1 / np.sqrt((1 + every[target]) * (1.0 + every[source]))
        else:
            weight = np.ones(len(target))
        order = np.lexsort((edge_type, target))
        if kind.to_configurable:
            order = order[(target[order] < self.configurable) | (edge_type[order] == 0)]
        target, source, edge_type, weight = target[order], source[order], edge_type[order], weight[order]
        starts = np.append(0, np.cumsum(np.bincount(target, minlength=self.nodes)))
        pair = np.unique(weight, return_inverse=True)[1] * 3 + edge_type
        hashes = np.random.default_rng(1).integers(2**64, size=pair.max(initial=0) + 1, dtype=np.uint64)[pair]
        hashed = csr_array((hashes, source, starts), shape=(self.nodes, self.nodes))
        return Neighbourhood(starts, source, edge_type, weight, hashed)
