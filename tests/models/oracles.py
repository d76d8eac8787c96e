"""Each layer by PyTorch Geometric, PyTorch or its equation, on the states of all nodes under all configurations."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, instance_norm, layer_norm, leaky_relu, normalize
from torch_geometric.nn import GATv2Conv, GPSConv, SAGEConv
from torch_geometric.nn.attention import PerformerAttention
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hlorank.models.compression.segment import Segment


class Graph(NamedTuple):
    """The edges of a segment from source to target, (2, edges), for each type of neighbours."""

    received: list[Tensor]
    directions: str
    configurable: int


def graph_of(segment: Segment, directions: str) -> Graph:
    user, operand = torch.from_numpy(segment.edges.ends).T
    operands, users = torch.stack([operand, user]), torch.stack([user, operand])
    shared = torch.cat([operands, users], dim=1)
    received = {"separate": [operands, users], "shared": [shared], "users": [users]}[directions]
    return Graph(received, directions, segment.configurable)


def each(x: Tensor, function: Callable[[Tensor], Any]) -> Tensor:
    """Apply a function of (nodes, width) to each configuration."""
    return torch.stack([function(x[:, c]) for c in range(x.shape[1])], dim=1)


def sage(layer: Any, x: Tensor, graph: Graph, aggr: str = "mean") -> Tensor:
    own, *others = layer.weights
    result: Tensor = x @ own.T + layer.bias
    for weight, edges in zip(others, graph.received, strict=True):
        convolution = SAGEConv(*weight.T.shape, aggr=aggr, root_weight=False, bias=False).double()
        convolution.lin_l.weight = nn.Parameter(weight)
        result = result + each(x, lambda states, run=convolution, edges=edges: run(states, edges))  # type: ignore[misc] # defaults of a lambda
    return result


def gcn(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    (own, *others), nodes = layer.weights, len(x)
    index, weights = gcn_norm(torch.cat(graph.received, dim=1), num_nodes=nodes, dtype=x.dtype)  # loops come last
    counts = [*(edges.shape[1] for edges in graph.received), nodes]
    parts = zip([*(others or [own]), own], index.split(counts, dim=1), weights.split(counts), strict=True)
    result: Tensor = layer.bias.expand(*x.shape[:2], -1)
    for matrix, (source, target), weight in parts:
        result = result.index_add(0, target, weight[:, None, None] * x[source] @ matrix.T)
    return result


def gatv2(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    width = x.shape[-1]
    if graph.directions != "separate":
        heads, channels = layer.attention.shape
        convolution = GATv2Conv(width, channels, heads=heads).double()
        convolution.lin_l.weight, convolution.lin_r.weight = layer.sources.weight, layer.target.weight
        convolution.lin_l.bias, convolution.lin_r.bias = nn.Parameter(0 * layer.target.bias), layer.target.bias
        convolution.att, convolution.bias = nn.Parameter(layer.attention[None]), layer.bias
        return each(x, lambda states: convolution(states, graph.received[0]))
    own, *neighbours = layer.sources.weight.chunk(3)

    def attended(states: Tensor) -> Tensor:
        result: Tensor = layer.bias.repeat(len(states), 1)
        for v in range(len(states)):
            received = zip(graph.received, neighbours, strict=True)
            sent = [w @ states[u] for (source, target), w in received for u in source[target == v]]
            messages = torch.stack([own @ states[v], *sent])
            wanted = layer.target(states[v]) + messages
            for head, channels in enumerate(torch.arange(width).chunk(len(layer.attention))):
                weights = torch.softmax(leaky_relu(wanted[:, channels], 0.2) @ layer.attention[head], dim=0)
                result[v, channels] += weights @ messages[:, channels]
        return result

    return each(x, attended)


def linear_attention(layer: Any, x: Tensor, _: Graph) -> Tensor:
    def attended(states: Tensor) -> Tensor:
        parts = []
        q, k, v = (states @ weight.T for weight in layer.inputs.weight.chunk(3))
        q, k = (torch.where(part > 0, part + 1, part.exp()) for part in (q, k))
        for channels in torch.arange(x.shape[-1]).chunk(2):
            similarity = q[:, channels] @ k[:, channels].T
            parts.append(similarity / similarity.sum(1, keepdim=True) @ v[:, channels])
        result: Tensor = layer.output(torch.cat(parts, dim=1))
        return result

    return each(x, attended)


class _Attention(PerformerAttention):  # type: ignore[misc] # PyTorch Geometric ships no types
    """Our linear attention under the interface of PyTorch Geometric, which has none with the same feature map."""

    def __init__(self, layer: Any) -> None:
        nn.Module.__init__(self)
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.layer(x.transpose(0, 1), None)
        return result.transpose(0, 1)


def gps(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    if graph.directions == "shared":
        convolution = SAGEConv(x.shape[-1], x.shape[-1], aggr="mean").double()
        convolution.lin_r.weight, convolution.lin_l.weight = (nn.Parameter(weight) for weight in layer.near.weights)
        convolution.lin_l.bias = layer.near.bias
        theirs = GPSConv(x.shape[-1], convolution, act="gelu", norm=None, attn_type="performer").double().eval()
        theirs.attn = _Attention(layer.far)
        theirs.norm1, theirs.norm2, theirs.norm3 = layer.norms
        theirs.mlp[0], theirs.mlp[3] = layer.mlp[0], layer.mlp[2]
        return each(x, lambda states: theirs(states, graph.received[0]))
    after_near, after_far, last = layer.norms
    both = after_near(x + sage(layer.near, x, graph)) + after_far(x + linear_attention(layer.far, x, graph))
    result: Tensor = last(both + layer.mlp(both))
    return result


def compared(x: Tensor) -> Tensor:
    """TGraph's gate; the temperature is 0.5 at first."""
    weight = torch.exp(2 * x)
    return torch.cat([x, x.shape[1] * weight / weight.sum(1, keepdim=True) * x], dim=-1)


def gated(layer: Any, x: Tensor, _: Graph) -> Tensor:
    first, second = layer.module.gate[0], layer.module.gate[2]
    return x / (1 + torch.exp(-second(first(x).clamp(min=0))))


def edge_mlp(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    weights = layer.sources.weight.chunk(len(graph.received))
    summed = torch.zeros_like(x)
    for (source, target), weight in zip(graph.received, weights, strict=True):
        both = torch.cat([layer.target.weight, weight], dim=1)  # an MLP of the concatenated states of both ends
        hidden = gelu(torch.cat([x[target], x[source]], dim=-1) @ both.T + layer.target.bias)
        summed = summed.index_add(0, target, hidden)
    summed[graph.configurable :] = 0
    result: Tensor = summed @ layer.output.weight.T
    return result


def perceptron(layer: Any, x: Tensor, _: Graph) -> Tensor:
    p = dict(layer.module.named_parameters())
    result: Tensor = gelu(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]
    return result


def normed(layer: Any, x: Tensor, _: Graph) -> Tensor:
    return instance_norm(x.permute(1, 2, 0), weight=layer.scale, bias=layer.offset).permute(2, 0, 1)


ORACLES: Mapping[str, Callable[[Any, Tensor, Graph], Tensor]] = {
    "sage": sage,
    "graph_conv": lambda layer, x, graph: sage(layer, x, graph, "sum"),
    "gcn": gcn,
    "gatv2": gatv2,
    "gps": gps,
    "linear_attention": linear_attention,
    "configuration_attention": lambda layer, x, _: compared(x) @ layer.joined.weight.T + layer.joined.bias,
    "instance_norm": normed,
    "dropout": lambda _, x, __: x,  # off
    "layer_norm": lambda layer, x, _: layer_norm(x, x.shape[-1:], layer.module.weight, layer.module.bias),
    "l2_norm": lambda _, x, __: normalize(x, dim=-1),
    "mlp": perceptron,
    "linear": lambda layer, x, _: x @ layer.module.weight.T + layer.module.bias,
    "gelu": lambda _, x, __: gelu(x),
    "relu": lambda _, x, __: x.clamp(min=0),
    "leaky_relu": lambda _, x, __: torch.where(x > 0, x, 0.2 * x),
    "channel_attention": gated,
    "reproductions:ConfigurationGate": lambda _, x, __: compared(x),
    "reproductions:EdgeMlp": edge_mlp,
}
OPERATORS: dict[str, dict[str, Any]] = {
    "SAGEConv": {"aggr": "max"},
    "GraphConv": {"edge_weight": "mean"},
    "GATConv": {"heads": 2, "self_loops": True},
    "GATv2Conv": {"heads": 3, "self_loops": True},
    "TransformerConv": {"heads": 2, "beta": True},
    "GINConv": {"train_eps": True},
    "GENConv": {"learn_t": True, "norm": None},
    "MFConv": {"max_degree": 3},
    "LEConv": {"edge_weight": "symmetric"},
    "ResGatedGraphConv": {},
    "CGConv": {},
    "FiLMConv": {},
    "FeaStConv": {"heads": 2},
    "GeneralConv": {"attention": True, "heads": 2},
    "EdgeConv": {"aggr": "mean"},
    "SimpleConv": {"aggr": "sum"},
}


def operator(name: str, layer: Any, x: Tensor, graph: Graph) -> Tensor:
    """Compute an operator of PyTorch Geometric on the plain graph."""
    results, arguments, nodes = [], OPERATORS[name], len(x)
    for convolution, index in zip(layer.convolutions, graph.received, strict=True):
        keywords = {}
        if "self_loops" in arguments:
            index = torch.cat([index, torch.arange(nodes).expand(2, -1)], dim=1)
        if (norm := arguments.get("edge_weight")) is not None:
            every = 1 + torch.bincount(torch.cat(graph.received, dim=1)[1], minlength=nodes)
            of_type = torch.bincount(index[1], minlength=nodes).double()
            mean, symmetric = 1 / of_type[index[1]], 1 / (every[index[0]] * every[index[1]]).double().sqrt()
            keywords["edge_weight"] = (mean if norm == "mean" else symmetric).to(x.dtype)
        results.append(each(x, lambda states, i=index, run=convolution, k=keywords: run((states, states), i, **k)))  # type: ignore[misc] # defaults of a lambda
    return reduce(Tensor.add, results)
