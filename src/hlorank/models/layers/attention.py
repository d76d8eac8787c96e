"""Attention over the nodes of a segment, and over the configurations that are ranked together."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, embedding

from hlorank.config import Directions
from hlorank.models.compression.declarations import Mixing
from hlorank.models.compression.plan import NodeIndex, QuotientGraph
from hlorank.models.layers.layer import Layer, head_width, mlp
from hlorank.models.layers.message_passing import Sage
from hlorank.models.plan_tensors import propagate

_MIN_TOTAL = 1e-6
_FIRST_TEMPERATURE = 0.5


class LinearAttention(Layer):
    """Multi-head attention with a kernel in place of the softmax, over all nodes under the same configuration.

    y_v = W [o_v of each head] + b, o_v = sum over nodes u of (f(q_v) . f(k_u)) v_u / sum over u of f(q_v) . f(k_u),
    f = elu + 1, where q, k and v are linear in x (Katharopoulos et al., ICML 2020, arXiv 2006.16236, equations 5
    and 7). The sums over u are the same for every node, so that no two nodes are ever compared.
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


class Gps(Layer):
    """A local and a global view of each node, and an MLP over their sum: the GPS layer.

    y = norm(z + MLP(z)), z = norm(x + GraphSAGE(x)) + norm(x + LinearAttention(x)) (Rampasek et al., NeurIPS 2022,
    arXiv 2205.12454), with layer normalization, and twice the width within the MLP. Residual connections are part of
    the layer.
    """

    mixing = Mixing.SEGMENT

    def __init__(self, width: int, heads: int, directions: Directions) -> None:
        super().__init__()
        self.near = Sage(width, width, directions)
        self.edges = self.near.edges
        self.far = LinearAttention(width, heads)
        self.mlp = mlp(width, 2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, graph: QuotientGraph[Tensor]) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        after_near, after_far, last = self.norms
        both = after_near(x + self.near(x.flatten(0, 1), graph).view_as(x)) + after_far(x + self.far(x, None))
        result: Tensor = last(both + self.mlp(both))
        return result


def _share(scaled: Tensor, index: NodeIndex[Tensor]) -> Tensor:
    """Return the softmax over the configurations of each node, times their number; colours count repeatedly."""
    if index.colours is None or index.node is None:
        share = torch.softmax(scaled.view(-1, index.configurations, scaled.shape[1]), dim=1)
        return share.mul_(index.configurations).view_as(scaled)
    most = scaled.new_full((len(index.colours.row_starts), scaled.shape[1]), -torch.inf)
    most.scatter_reduce_(0, index.node[:, None].expand_as(scaled), scaled, "amax")
    share = torch.exp(scaled - embedding(index.node, most))
    return share.mul_(embedding(index.node, index.configurations / propagate(share, index.colours)))


class _Compare(torch.autograd.Function):
    """C x softmax over configurations of k x, in half of the time of its separate operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        share = _share(k * x.to(k.dtype), index)
        ctx.save_for_backward(x, k, share)
        ctx.index = index
        return share * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, k, share), index = ctx.saved_tensors, ctx.index
        direct = gradients[0] * share
        through = direct * x
        if index.colours is None:
            nodes = through.view(-1, index.configurations, x.shape[1])
            nodes.addcmul_(share.view_as(nodes), nodes.sum(dim=1, keepdim=True), value=-1 / index.configurations)
        else:
            of_node = embedding(index.node, propagate(through, index.colours._replace(weight=None)))
            weight = index.colours.weight[:, None].to(share.dtype) / -index.configurations
            through.addcmul_(share * weight, of_node)
        return torch.addcmul(direct, through, k), torch.sum(through * x).to(k.dtype), None


class Comparison(Layer):
    """Comparison of the configurations that are ranked together, for each node and channel.

    The states before are followed by x_c * a_c, a_c = C exp(x_c / T) / sum over c' of exp(x_c' / T), over the C
    configurations ranked together, with a learned temperature T above 0 (the cross-configuration attention of TGraph,
    arXiv 2405.16623). The factor C, which TGraph lacks, makes the weights average 1 however many are ranked together,
    so that a model can rank more of them than it was trained with.
    """

    mixing = Mixing.CONFIGURATIONS

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(_FIRST_TEMPERATURE)))

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to (colours, 2 width); configurations of one colour have equal weights."""
        k = (-self.log_temperature).exp()
        compared: Tensor = _Compare.apply(x, k, index)  # type: ignore[no-untyped-call] # untyped in PyTorch
        return torch.cat([x, compared], dim=-1)


class ConfigurationAttention(Comparison):
    """Cross-configuration attention: a linear map of the states and their `Comparison` to the width before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.joined = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to the same shape."""
        result: Tensor = self.joined(super().forward(x, index))
        return result
