"""An MLP on the edges of configurable nodes."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.functional import gelu

from hlorank.models.edges import Neighbourhood
from hlorank.models.inputs import Segment
from hlorank.models.layers.edge_wise import EdgeWise


class EdgeMlp(EdgeWise):
    """What a configurable node has to do with each neighbour, summed; 0 for the other nodes.

    y_v = W_2 sum over neighbours u of gelu(W x_v + W_u x_u + b); with separate directions W_u differs between operands
    and users. The fourth of the Kaggle competition on TpuGraphs (discussion 456462) reads edges in this way in place of
    message passing: those from operands, with deeper MLPs, and a post_layers of its own.

    Args:
        width: of states.
        shared: edges of both directions have the same weights.
    """

    def __init__(self, width: int, shared: bool) -> None:
        super().__init__(width, shared, weights_of=(-1, 0) if shared else (-1, 0, 1))
        self.output = nn.Linear(width, width, bias=False)

    def neighbourhood(self, segment: Segment) -> Neighbourhood:
        """What each node receives: from itself, and if it is configurable, from its neighbours."""
        starts, source, kind, weight, names = super().neighbourhood(segment)
        free = segment.reached(0)  # configurable nodes come first
        kept = (np.arange(len(kind)) < starts[free]) | (kind == 0)
        starts = np.append(0, np.cumsum(kept))[starts].astype(starts.dtype)
        source = source[kept]
        named = csr_array((names.data[kept], source, starts), shape=names.shape)
        return Neighbourhood(starts, source, kind[kept], weight[kept], named)

    def combine(self, target: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        """New states, (rows, width), from what they receive; see `EdgeWise`."""
        hidden = gelu(target + source)
        result: Tensor = self.output(source.new_zeros(rows, source.shape[1]).index_add(0, row, hidden))
        return result
