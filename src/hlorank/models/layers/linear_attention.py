"""Attention over the nodes of a segment, in time that grows linearly with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.parts import head_width

_MIN_TOTAL = 1e-6


class LinearAttention(Layer):
    """Multi-head attention with a kernel in place of the softmax, over all nodes under the same configuration.

    y_v = W [o_v of each head] + b, o_v = sum over nodes u of (f(q_v) . f(k_u)) v_u / sum over u of f(q_v) . f(k_u),
    f = elu + 1, where q, k and v are linear in x (Katharopoulos et al., ICML 2020, arXiv 2006.16236, equations 5
    and 7). The sums over u are the same for every node, so that no two nodes are ever compared.

    Args:
        width: length of a state.
        heads: number of attention heads, a divisor of `width`.

    Raises:
        ConfigError: `heads` does not divide `width`.
    """

    mixing = Mixing.SEGMENT

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._split = heads, head_width(width, heads)
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, _: None) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        queries, keys, values = (part.unflatten(-1, self._split) for part in self.inputs(x).chunk(3, dim=-1))
        queries, keys = elu(queries) + 1, elu(keys) + 1
        total = torch.einsum("nchk,chk->nch", queries, keys.sum(dim=0))
        sums = torch.einsum("nchk,chkv->nchv", queries, torch.einsum("nchk,nchv->chkv", keys, values))
        # All features may round to 0, as elu does to -1.
        result: Tensor = self.output((sums / total.clamp(min=_MIN_TOTAL)[..., None]).flatten(-2))
        return result
