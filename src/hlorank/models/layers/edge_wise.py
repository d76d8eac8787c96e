"""Message passing with a function of both ends of each edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hlorank.models.compression.colouring import Colouring, NodeStates, Received
from hlorank.models.edges import Neighbourhood, Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing


class EdgeWise(Layer):
    """y_v = combination over kinds k and u in N_k(v) of W x_v + b and W_k x_u.

    The kinds are as in `Neighbourhood`. A vector for each edge cannot be helped where the combination is not linear,
    but all of them need not be in memory at once: they are computed in pieces of about as many edges as there are
    states before, and once more for their gradients.

    Args:
        width: of states.
        shared: edges of both directions are of one kind.
        weights_of: which of the weights W_k each kind has; -1 for a kind that is left out.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, shared: bool, weights_of: Sequence[int]) -> None:
        super().__init__()
        self.shared = shared
        self._weights_of = np.array(weights_of)
        self.target = nn.Linear(width, width)
        self.sources = nn.Linear(width, (max(weights_of) + 1) * width, bias=False)

    def neighbourhood(self, segment: Segment) -> Neighbourhood:
        """What each node receives."""
        return segment.edges.normed(Norm.SUM, self.shared).neighbourhood

    def combine(self, target: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        """New states from what they receive.

        Args:
            target: (entries, width), W x_v + b.
            source: (entries, width), W_k x_u.
            row: (entries,) int64, ascending, the row v that receives.
            rows: how many there are.

        Returns:
            (rows, width).
        """
        raise NotImplementedError

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        rows = Colouring.plain(*x.shape[:2])
        return self._receive(x.flatten(0, 1), rows.received(rows, self.neighbourhood(segment))).view_as(x)

    def spread(self, state: NodeStates, segment: Segment) -> NodeStates:
        """The same, where the configurations reach one edge farther than before."""
        neighbourhood = self.neighbourhood(segment)
        hops, reached = state.next_reach(segment)
        rows = state.rows.spread(neighbourhood, reached)
        return NodeStates(self._receive(state.values, rows.received(state.rows, neighbourhood)), rows, hops)

    def _receive(self, values: Tensor, received: Received) -> Tensor:
        weights = self._weights_of[received.kind]
        kept = np.flatnonzero(weights >= 0)
        starts, row = np.searchsorted(kept, received.starts), received.row[kept]
        source = (self._weights_of.max() + 1) * received.source[kept] + weights[kept]
        own = received.source[received.kind == 0]
        targets, sources = self.target(values), self.sources(values).view(-1, values.shape[1])

        def tensor(index: NDArray[Any]) -> Tensor:
            return torch.from_numpy(index).to(values.device)

        pieces = max(1, len(kept) // len(values))
        bounds = np.linspace(0, len(own), pieces + 1).astype(np.int64)
        states = []
        for first, last in pairwise(bounds):
            part = slice(starts[first], starts[last])
            index = tensor(own[row[part]]), tensor(source[part]), tensor(row[part] - first), int(last - first)
            states.append(
                checkpoint(self._piece, targets, sources, *index, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(states)

    def _piece(self, targets: Tensor, sources: Tensor, own: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        return self.combine(targets.index_select(0, own), sources.index_select(0, source), row, rows)
