"""Graph attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from hlorank.config import Directions
from hlorank.models.compression.edges import EdgeForm, EdgeKind, Norm
from hlorank.models.layers.edge_wise import EdgeWise
from hlorank.models.layers.parts import head_width

_SLOPE = 0.2


class Gatv2(EdgeWise):
    """Multi-head attention of each node over its neighbours and itself.

    y_v = b + [sum over u of a_vu W_u x_u of each head], a_v = softmax over u of a . leaky_relu(W x_v + c + W_u x_u)
    with slope 0.2 (Brody et al., ICLR 2022, arXiv 2105.14491, equations 3, 4 and 7). The weights W_u are the same for
    all u; with separate directions they differ between the node itself, operands and users.

    Args:
        width: length of a state.
        heads: number of attention heads, a divisor of `width`.
        directions: of the edges; see `EdgeKind`.

    Raises:
        ConfigError: `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int, directions: Directions) -> None:
        super().__init__(width, EdgeKind(Norm.SUM, directions, form=EdgeForm.PIECES))
        self.attention = nn.Parameter(torch.empty(heads, head_width(width, heads)))
        nn.init.xavier_uniform_(self.attention)
        self.bias = nn.Parameter(torch.zeros(width))

    def combine(self, target: Tensor, source: Tensor, index: Tensor, states: int) -> Tensor:
        """Compute new states, (states, width); see `EdgeWise`."""
        from torch_geometric.utils import softmax  # takes as long to import as PyTorch

        split = len(index), *self.attention.shape
        scores = (leaky_relu(target + source, _SLOPE).view(split) * self.attention).sum(dim=-1)
        messages = softmax(scores, index, num_nodes=states)[..., None] * source.view(split)
        return self.bias + source.new_zeros(states, source.shape[1]).index_add(0, index, messages.flatten(-2))
