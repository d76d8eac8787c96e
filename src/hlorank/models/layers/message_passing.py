"""Message passing along the edges of a segment."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear
from torch.utils.checkpoint import checkpoint

from hlorank.config import Directions
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Mixing, Norm
from hlorank.models.compression.plan import QuotientGraph, QuotientPieces
from hlorank.models.layers.layer import Layer, head_width
from hlorank.models.plan_tensors import propagate

_SLOPE = 0.2


class Convolution(Layer):
    """Message passing that is linear in the neighbours' states.

    y_v = b + sum over edge types k of W_k sum over u in N_k(v) of a_vu x_u. The edge types k are the node itself, its
    operands and its users, or its neighbours of either direction together. The `norm` of a subclass defines the weights
    a_vu. All states before are multiplied by all W_k, and the products are summed along the edges: there are fewer
    states before than edges.
    """

    mixing = Mixing.NEIGHBOURS
    norm: ClassVar[Norm]
    own_weights: ClassVar[bool]  # W_k of the node itself differs from the W_k of its neighbours, if these share it

    def __init__(self, inputs: int, width: int, directions: Directions) -> None:
        super().__init__()
        self.edges = EdgeKind(self.norm, directions, own_type=self.own_weights or directions == "separate")
        maps = [nn.Linear(inputs, width, bias=place == 0) for place in range(self.edges.types)]
        self.weights = nn.Parameter(torch.empty(len(maps), width, inputs))  # the W_k
        with torch.no_grad():  # not torch.stack, for which PyTorch imports its compiler on the device meta
            for weight, initial in zip(self.weights, maps, strict=True):
                weight.copy_(initial.weight)
        self.bias = nn.Parameter(maps[0].bias.detach())

    def forward(self, x: Tensor, graph: QuotientGraph[Tensor]) -> Tensor:
        """Compute (colours before, inputs) to (colours after, width)."""
        count, width = self.weights.shape[:2]
        products = linear(x, self.weights.flatten(0, 1))
        if graph.copies == 1:
            return propagate(products.view(-1, width), graph.matrix, self.bias)
        if count > 1:
            products = products.view(-1, graph.copies, count, width).transpose(1, 2)
        summed = propagate(products.reshape(-1, graph.copies * width), graph.matrix)
        return summed.view(-1, width) + self.bias


class Sage(Convolution):
    """GraphSAGE with mean aggregation.

    y_v = W_own x_v + W_operands mean of x_u over operands u + W_users mean of x_u over users u + b; with shared
    directions one mean over all neighbours (Hamilton et al., NeurIPS 2017, arXiv 1706.02216, equation 2).
    """

    norm = Norm.MEAN
    own_weights = True


class Gcn(Convolution):
    """Graph convolution with symmetric normalization.

    y_v = W sum over u in N(v) and v itself of x_u / sqrt(d_v d_u) + b, d = 1 + the number of edges of either
    direction (Kipf and Welling, ICLR 2017, arXiv 1609.02907, equation 2); with separate directions W differs between
    the node itself, operands and users.
    """

    norm = Norm.SYMMETRIC
    own_weights = False


class GraphConv(Convolution):
    """Message passing with sum aggregation, which depends on the number of neighbours.

    y_v = W_own x_v + W_operands sum of x_u over operands u + W_users sum of x_u over users u + b; with shared
    directions one sum over all neighbours (Morris et al., AAAI 2019, arXiv 1810.02244, equation 5; the official tile
    baseline calls it GraphSAGE).
    """

    norm = Norm.SUM
    own_weights = True


class EdgeWise(Layer):
    """Message passing with a function of both ends of each edge.

    y_v = combination over edge types k and u in N_k(v) of W x_v + b and W_k x_u. The types of edges with the same
    direction, or of all edges if directions are shared, have the same W_k. A combination that is not linear needs a
    vector for each edge, but not all of them in memory at once: they are computed in pieces of about as many edges as
    there are states before, and once more for their gradients.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int, edges: EdgeKind) -> None:
        super().__init__()
        self.edges = edges
        self._maps = edges.types if edges.neighbour_types > 1 else 1
        self.target = nn.Linear(width, width)
        self.sources = nn.Linear(width, self._maps * width, bias=False)

    def combine(self, target: Tensor, source: Tensor, index: Tensor, states: int) -> Tensor:
        """Compute the new states, (states, width), from the edges to them.

        Target and source are (edges, width), W x_v + b and W_k x_u; index is (edges,), ascending, the new state of v.
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

    def _piece(self, targets: Tensor, sources: Tensor, own: Tensor, other: Tensor, index: Tensor, count: int) -> Tensor:
        return self.combine(targets.index_select(0, own), sources.index_select(0, other), index, count)


class Gatv2(EdgeWise):
    """Multi-head attention of each node over its neighbours and itself.

    y_v = b + [sum over u of a_vu W_u x_u of each head], a_v = softmax over u of a . leaky_relu(W x_v + c + W_u x_u)
    with slope 0.2 (Brody et al., ICLR 2022, arXiv 2105.14491, equations 3, 4 and 7). The weights W_u are the same for
    all u; with separate directions they differ between the node itself, operands and users.
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
