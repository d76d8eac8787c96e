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

from hlorank.models.compression.colouring import Colouring, Neighbourhood, QuotientGraph
from hlorank.models.edges import Norm
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.node_states import NodeStates


class EdgeWise(Layer):
    """y_v = combination over edge types k and u in N_k(v) of W x_v + b and W_k x_u.

    The edge types are those of `Neighbourhood`. A combination that is not linear needs a vector for each edge, but not
    all of them in memory at once: they are computed in pieces of about as many edges as there are states before, and
    once more for their gradients.

    Args:
        width: length of a state.
        shared: edges of both directions are of one type.
        weights_of: index of the weights W_k of each edge type; -1 for a type that is left out.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, shared: bool, weights_of: Sequence[int]) -> None:
        super().__init__()
        self.shared = shared
        self._weights_of = np.array(weights_of)
        self.target = nn.Linear(width, width)
        self.sources = nn.Linear(width, (max(weights_of) + 1) * width, bias=False)

    def neighbourhood(self, segment: Segment) -> Neighbourhood:
        """Return the edges along which nodes receive."""
        return segment.edges.normed(Norm.SUM, self.shared).neighbourhood

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

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        dense = Colouring.identity(*x.shape[:2])
        graph = QuotientGraph.between(dense, dense, self.neighbourhood(segment))
        return self._receive(x.flatten(0, 1), graph).view_as(x)

    def forward_compressed(self, states: NodeStates, segment: Segment) -> NodeStates:
        """Compute the compressed form, on the quotient graph."""
        neighbourhood = self.neighbourhood(segment)
        colouring, hops = states.refine(segment, neighbourhood)
        quotient = QuotientGraph.between(states.colouring, colouring, neighbourhood)
        return NodeStates(self._receive(states.values, quotient), colouring, hops)

    def _receive(self, values: Tensor, quotient: QuotientGraph) -> Tensor:
        weights = self._weights_of[quotient.edge_type]
        kept = np.flatnonzero(weights >= 0)
        starts, target = np.searchsorted(kept, quotient.starts), quotient.target[kept]
        source = (self._weights_of.max() + 1) * quotient.source[kept] + weights[kept]
        own = quotient.source[quotient.edge_type == 0]
        targets, sources = self.target(values), self.sources(values).view(-1, values.shape[1])

        def tensor(index: NDArray[Any]) -> Tensor:
            return torch.from_numpy(index).to(values.device)

        pieces = max(1, len(kept) // len(values))
        bounds = np.linspace(0, len(own), pieces + 1).astype(np.int64)
        states = []
        for first, last in pairwise(bounds):
            part = slice(starts[first], starts[last])
            index = tensor(own[target[part]]), tensor(source[part]), tensor(target[part] - first), int(last - first)
            states.append(
                checkpoint(self._piece, targets, sources, *index, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(states)

    def _piece(
        self, targets: Tensor, sources: Tensor, own: Tensor, source: Tensor, index: Tensor, states: int
    ) -> Tensor:
        return self.combine(targets.index_select(0, own), sources.index_select(0, source), index, states)
