"""Every layer against PyTorch Geometric, PyTorch or its equation, in its dense and its compressed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, instance_norm, layer_norm, leaky_relu, normalize
from torch_geometric.nn import GATv2Conv, GCNConv, GPSConv, GraphConv, SAGEConv
from torch_geometric.nn.attention import PerformerAttention

from hlorank.config import ConfigError, Directions
from hlorank.models.compression.segment import Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.operator import Operator
from tests.models.dense_form import ALL_LAYERS, both_forms, run_dense

NODES, CONFIGURATIONS, WIDTH = 24, 3, 6
DIRECTIONS = get_args(Directions)
MakeLayer = Callable[..., Layer]
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


class Graph(NamedTuple):
    """Edges from source to target, (2, edges), by the direction in which they pass messages."""

    operands: Tensor
    users: Tensor
    directions: str
    configurable: int

    @property
    def received(self) -> list[Tensor]:
        """The edges of each type of neighbours."""
        both = torch.cat([self.operands, self.users], dim=1)
        return {"separate": [self.operands, self.users], "shared": [both], "users": [self.users]}[self.directions]


def each(x: Tensor, function: Callable[[Tensor], Any]) -> Tensor:
    """Apply a function of (nodes, width) to each configuration."""
    return torch.stack([function(x[:, c]) for c in range(x.shape[1])], dim=1)


def sage(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    own, *others = layer.weights
    convolved = []
    for weight, edges in zip(others, graph.received, strict=True):
        convolution = SAGEConv(WIDTH, WIDTH, aggr="mean", root_weight=False, bias=False).double()
        convolution.lin_l.weight = nn.Parameter(weight)
        convolved.append(each(x, lambda states, edges=edges, run=convolution: run(states, edges)))  # type: ignore[misc]
    result: Tensor = sum(convolved, x @ own.T + layer.bias)
    return result


def graph_conv(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    own, *others = layer.weights
    convolved = []
    for weight, edges in zip(others, graph.received, strict=True):
        convolution = GraphConv(WIDTH, WIDTH, bias=False).double()
        convolution.lin_rel.weight, convolution.lin_root.weight = nn.Parameter(weight), nn.Parameter(0 * weight)
        convolved.append(each(x, lambda states, edges=edges, run=convolution: run(states, edges)))  # type: ignore[misc]
    result: Tensor = sum(convolved, x @ own.T + layer.bias)
    return result


def gcn(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    own, *others = layer.weights
    if graph.directions == "shared":
        convolution = GCNConv(WIDTH, WIDTH).double()
        convolution.lin.weight, convolution.bias = nn.Parameter(own), layer.bias
        return each(x, lambda states: convolution(states, graph.received[0]))
    one = torch.ones((), dtype=x.dtype)
    adjacency = [
        torch.zeros(NODES, NODES, dtype=x.dtype).index_put_((target, source), one, accumulate=True)
        for source, target in graph.received
    ]
    scale = (1 + reduce(Tensor.add, adjacency).sum(dim=1)).rsqrt()
    scaled = [scale[:, None] * matrix * scale for matrix in adjacency]
    summed = scale.square()[:, None, None] * x @ own.T + layer.bias
    for matrix, weight in zip(scaled, others or [own], strict=True):
        summed = summed + torch.einsum("vu,ucw->vcw", matrix, x) @ weight.T
    result: Tensor = summed
    return result


def gatv2(layer: Any, x: Tensor, graph: Graph) -> Tensor:
    if graph.directions != "separate":
        heads, channels = layer.attention.shape
        convolution = GATv2Conv(WIDTH, channels, heads=heads).double()
        convolution.lin_l.weight, convolution.lin_r.weight = layer.sources.weight, layer.target.weight
        convolution.lin_l.bias, convolution.lin_r.bias = nn.Parameter(0 * layer.target.bias), layer.target.bias
        convolution.att, convolution.bias = nn.Parameter(layer.attention[None]), layer.bias
        return each(x, lambda states: convolution(states, graph.received[0]))
    own, *neighbours = layer.sources.weight.chunk(3)
    return each(x, lambda states: _attended(layer, states, own, [*zip(graph.received, neighbours, strict=True)]))


def _attended(layer: Any, x: Tensor, own: Tensor, received: list[tuple[Tensor, Tensor]]) -> Tensor:
    result = torch.zeros_like(x)
    for v in range(NODES):
        messages = torch.stack(
            [own @ x[v], *(w @ x[u] for (source, target), w in received for u in source[target == v])]
        )
        wanted = layer.target(x[v]) + messages
        for head, channels in enumerate(torch.arange(WIDTH).chunk(len(layer.attention))):
            weights = torch.softmax(leaky_relu(wanted[:, channels], 0.2) @ layer.attention[head], dim=0)
            result[v, channels] = weights @ messages[:, channels]
    biased: Tensor = result + layer.bias
    return biased


def linear_attention(layer: Any, x: Tensor, _: Graph) -> Tensor:
    def attended(states: Tensor) -> Tensor:
        parts = []
        q, k, v = (states @ weight.T for weight in layer.inputs.weight.chunk(3))
        q, k = (torch.where(part > 0, part + 1, part.exp()) for part in (q, k))
        for channels in torch.arange(WIDTH).chunk(2):
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
    after_near, after_far, last = layer.norms
    if graph.directions == "shared":
        convolution = SAGEConv(WIDTH, WIDTH, aggr="mean").double()
        convolution.lin_r.weight, convolution.lin_l.weight = (nn.Parameter(weight) for weight in layer.near.weights)
        convolution.lin_l.bias = layer.near.bias
        theirs = GPSConv(WIDTH, convolution, act="gelu", norm=None, attn_type="performer").double().eval()
        theirs.attn = _Attention(layer.far)
        theirs.norm1, theirs.norm2, theirs.norm3 = layer.norms
        theirs.mlp[0], theirs.mlp[3] = layer.mlp[0], layer.mlp[2]
        return each(x, lambda states: theirs(states, graph.received[0]))
    both = after_near(x + sage(layer.near, x, graph)) + after_far(x + linear_attention(layer.far, x, graph))
    result: Tensor = last(both + layer.mlp(both))
    return result


def compared(_: Any, x: Tensor, __: Graph) -> Tensor:
    """TGraph's gate; the temperature is 0.5 at first."""
    weight = torch.exp(2 * x)
    return torch.cat([x, x.shape[1] * weight / weight.sum(1, keepdim=True) * x], dim=-1)


def normed(layer: Any, x: Tensor, _: Graph) -> Tensor:
    return instance_norm(x.permute(1, 2, 0), weight=layer.scale, bias=layer.offset).permute(2, 0, 1)


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


ORACLES: Mapping[str, Callable[[Any, Tensor, Graph], Tensor]] = {
    "sage": sage,
    "graph_conv": graph_conv,
    "gcn": gcn,
    "gatv2": gatv2,
    "linear_attention": linear_attention,
    "gps": gps,
    "configuration_attention": lambda layer, x, graph: layer.joined(compared(layer, x, graph)),
    "instance_norm": normed,
    "dropout": lambda _, x, __: x,  # its rate is 0
    "layer_norm": lambda layer, x, _: layer_norm(x, (WIDTH,), layer.module.weight, layer.module.bias),
    "l2_norm": lambda _, x, __: normalize(x, dim=-1),
    "mlp": perceptron,
    "linear": lambda layer, x, _: x @ layer.module.weight.T + layer.module.bias,
    "gelu": lambda _, x, __: gelu(x),
    "relu": lambda _, x, __: x.clamp(min=0),
    "leaky_relu": lambda _, x, __: torch.where(x > 0, x, 0.2 * x),
    "channel_attention": gated,
    "reproductions:ConfigurationGate": compared,
    "reproductions:EdgeMlp": edge_mlp,
}


def operator(layer: Any, x: Tensor, graph: Graph, arguments: Mapping[str, Any]) -> Tensor:
    """Compute an operator of PyTorch Geometric on the plain graph."""
    results = []
    for convolution, index in zip(layer.convolutions, graph.received, strict=True):
        keywords = {}
        if "self_loops" in arguments:
            index = torch.cat([index, torch.arange(NODES).expand(2, -1)], dim=1)
        if (norm := arguments.get("edge_weight")) is not None:
            every = 1 + torch.bincount(torch.cat(graph.received, dim=1)[1], minlength=NODES)
            of_type = torch.bincount(index[1], minlength=NODES).double()
            mean, symmetric = 1 / of_type[index[1]], 1 / (every[index[0]] * every[index[1]]).double().sqrt()
            keywords["edge_weight"] = (mean if norm == "mean" else symmetric).to(x.dtype)
        results.append(each(x, lambda states, i=index, run=convolution, k=keywords: run((states, states), i, **k)))  # type: ignore[misc]
    return reduce(Tensor.add, results)


def cases() -> list[tuple[str, str]]:
    """Return every layer with each of the directions that it reads."""
    with_edges = {"sage", "graph_conv", "gcn", "gatv2", "gps", "reproductions:EdgeMlp", *OPERATORS}
    return [
        (name, one)
        for name in (*ALL_LAYERS, *OPERATORS)
        for one in (DIRECTIONS if name in with_edges else DIRECTIONS[:1])
    ]


def made(make_layer: MakeLayer, name: str, directions: str) -> Any:
    own = {name: {"directions": directions}} if name.endswith("EdgeMlp") else OPERATORS
    layer: Any = make_layer(name, directions=directions, operators=own)
    for parameter in layer.parameters() if name in ("instance_norm", "gatv2", "gps") else ():
        nn.init.normal_(parameter, std=0.5)  # scales are 1 and offsets 0 at first
    return layer


@pytest.mark.parametrize(("name", "directions"), cases())
def test_equals_its_oracle(
    name: str, directions: str, make_layer: MakeLayer, segment: Segment, edge_indices: tuple[Tensor, Tensor]
) -> None:
    layer, graph = made(make_layer, name, directions), Graph(*edge_indices, directions, segment.configurable)
    x = torch.randn(NODES, CONFIGURATIONS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if name in OPERATORS:
        assert isinstance(layer, Operator)
        expected = operator(layer, x, graph, OPERATORS[name])
    else:
        expected = ORACLES[name](layer, x, graph)
    exact = name not in ("reproductions:ConfigurationGate", "configuration_attention")  # 0.5 is stored in float32
    tolerance = 1e-9 if exact else 1e-6
    result = run_dense(layer, x, segment)
    assert result.shape == (NODES, CONFIGURATIONS, layer.widens * WIDTH)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(run_dense(layer.float(), x.float(), segment).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "directions", "rows", "segments", "nodes"),
    [
        *((*case, [3, 0, 7, 5], 2, 40) for case in cases()),
        *((*case, [3], 3, 60) for case in cases() if case[0] not in OPERATORS),
        *((*case, [3, 0, 7, 5], 24, 24) for case in cases() if case[0] not in OPERATORS),  # no edges
    ],
)
def test_the_compressed_form_equals_the_dense_form(
    name: str,
    directions: str,
    rows: list[int],
    segments: int,
    nodes: int,
    make_model: Callable[..., CostModel],
    make_inputs: Callable[..., GraphInputs],
) -> None:
    model = make_model(
        stem=[] if name in OPERATORS else [name],
        block=["linear", name, "gelu"],
        pooling=["sum", "max"],
        directions=directions,
        operators={name: {"directions": directions}} if name.endswith("EdgeMlp") else OPERATORS,
        join="late" if name in OPERATORS and directions == "shared" else "early",
    )
    graph = make_inputs(segments=segments, nodes=nodes)
    torch.testing.assert_close(*both_forms(model, graph, np.array(rows)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("sagee", {}, r"model.block=sagee: .*sage"),
        ("GCNConv", {}, r"model\.block: GCNConv"),
        ("TransformerConv", {"head": 2}, r"model\.operators\.TransformerConv: .*head"),
        ("TransformerConv", {"heads": 4}, r"model\.heads=4"),
        ("SAGEConv", {"edge_weight": "mean"}, r"model\.block: SAGEConv .*edge_weight"),
        ("LEConv", {"edge_weight": "max"}, r"model\.operators\.LEConv\.edge_weight: .*max"),
        ("GENConv", {}, r"model\.operators\.GENConv: .*depends on other nodes"),
        ("GATv2Conv", {"dropout": 0.5}, r"model\.operators\.GATv2Conv: .*chance"),
        ("SAGEConv", {"aggr": "lstm"}, r"SAGEConv"),
        ("NNConv", {}, r"model\.operators\.NNConv: "),
        ("MessagePassin", {}, r"model\.block=MessagePassin"),
        ("reproductions:EdgeMlp", {"heads": 2}, r"model\.operators\.reproductions:EdgeMlp: .*heads"),
        ("reproductions:EdgeMLP", {}, r"model\.block=reproductions:EdgeMLP"),
    ],
)
def test_what_cannot_run_is_refused(name: str, arguments: dict[str, Any], match: str, make_layer: MakeLayer) -> None:
    with pytest.raises(ConfigError, match=match):
        make_layer(name, operators={name: arguments})
