"""Message passing with a function of both ends of each edge."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hlorank.models.compression.edges import EdgeKind
from hlorank.models.compression.plan import QuotientPieces
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer


class EdgeWise(Layer):
    """y_v = combination over edge types k and u in N_k(v) of W x_v + b and W_k x_u.

    The types of edges with the same direction, or of all edges if directions are shared, have the same W_k. A
    combination that is not linear needs a vector for each edge, but not all of them in memory at once: they are
    computed in pieces of about as many edges as there are states before, and once more for their gradients.

    Args:
        width: length of a state.
        edges: the edges along which nodes receive, in pieces.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, edges: EdgeKind) -> None:
        super().__init__()
        self.edges = edges
        self._maps = edges.types if edges.neighbour_types > 1 else 1
        self.target = nn.Linear(width, width)
        self.sources = nn.Linear(width, self._maps * width, bias=False)

    def combine(self, target: Tensor, source: Tensor, index: Tensor, states: int) -> Tensor:
        """Compute new states from the edges to them.

        Args:
            target: (edges, width), W x_v + b.
            source: (edges, width), W_k x_u.
            index: (edges,) int64, ascending, the new state of v.
            states: number of new states.

        Returns:
            (states, width).
        """
        raise NotImplementedError

    def forward(self, x: Tensor, graph: QuotientPieces[Tensor]) -> Tensor:
        """Compute (colours before, width) to (colours after, width)."""
        targets, sources = self.target(x), self.sources(x).view(-1, x.shape[1])
        own = graph.target if graph.roots is None else graph.roots.column[graph.target]
        # The first checkpoint of a process imports PyTorch's compiler, for seconds.
        piece = partial(checkpoint, self._piece, use_reentrant=False, preserve_rng_state=False)
        compute = piece if torch.is_grad_enabled() else self._piece
        states = []
        for first, last, start, stop in graph.bounds:
            index = own[start:stop], graph.source[start:stop], graph.target[start:stop] - first, last - first
            states.append(compute(targets, sources, *index))
        return torch.cat(states)

    def _piece(
        self, targets: Tensor, sources: Tensor, own: Tensor, source: Tensor, index: Tensor, states: int
    ) -> Tensor:
        return self.combine(targets.index_select(0, own), sources.index_select(0, source), index, states)
