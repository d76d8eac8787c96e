"""Message passing operators of PyTorch Geometric by name, and operators of plugins."""

import inspect
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from hlorank.config import Directions
from hlorank.config.extension_point import UnknownNameError
from hlorank.files import first_line
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Mixing, Norm
from hlorank.models.compression.plan import QuotientEdges
from hlorank.models.layers.layer import Layer, mlp
from hlorank.models.plan_tensors import propagate

_SELF_LOOPS, _EDGE_WEIGHT = "self_loops", "edge_weight"


class Operator(Layer):
    """A convolution of PyTorch Geometric, from the colours before to the colours after.

    A colour after is a target node with the features of its colour before, so an operator that takes bipartite graphs
    computes exactly what it computes on the graph of all nodes under all configurations, if its result does not depend
    on the order of the edges. With separate directions there are two convolutions, over operands and over users, whose
    results are added up. The `arguments` are the arguments of the class besides the widths; in addition `self_loops`,
    true if nodes receive from themselves, and `edge_weight`, a norm of edges, for a class with such an argument.
    """

    mixing = Mixing.NEIGHBOURS

    def __init__(self, kind: type[nn.Module], width: int, directions: Directions, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        own = {key: arguments[key] for key in (_SELF_LOOPS, _EDGE_WEIGHT) if key in arguments}
        others = {key: value for key, value in arguments.items() if key not in own}
        try:
            norm = Norm(own.get(_EDGE_WEIGHT, Norm.SUM.value))
        except ValueError as error:
            allowed = ", ".join(known.value for known in Norm)
            raise ValueError(f"{_EDGE_WEIGHT}: {error}; set one of {allowed}") from None
        self.edges = EdgeKind(norm, directions, itself=bool(own.get(_SELF_LOOPS, False)), form=EdgeForm.DIRECTIONS)
        self._weighted = _EDGE_WEIGHT in own
        self.convolutions = nn.ModuleList(_make(kind, width, others) for _ in range(self.edges.neighbour_types))
        self._check(width)

    def _check(self, width: int) -> None:
        """Try the operator on a tiny bipartite graph, and with a repeated target and the edges in another order."""
        if next(self.parameters(), torch.zeros(())).is_meta:
            return
        x = torch.linspace(-3, 3, 5 * width).sin().view(5, width)
        edges = torch.tensor([[0, 2, 1], [0, 0, 1]]), torch.tensor([[1, 2, 0, 0, 2], [1, 2, 2, 0, 0]])
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                plain, repeated = (
                    self.convolutions[0](
                        (x[:3], x[[3, 4, 3][:count]]), index, **self._keywords(torch.ones(index.shape[1]))
                    )
                    for count, index in zip((2, 3), edges, strict=True)
                )
        except Exception as error:  # operators check little themselves
            raise ValueError(f"it does not run on a bipartite graph of width {width}: {first_line(error)}") from None
        if plain.shape != (2, width):
            raise ValueError(f"results of shape {[*plain.shape]} for 2 nodes, and model.width is {width}")
        if not torch.allclose(repeated, plain[[0, 1, 0]], atol=1e-5):
            raise ValueError(
                "the result of a node depends on other nodes, on the order of its edges or on chance; leave out "
                "norms over nodes, LSTM aggregation and dropout"
            )

    def _keywords(self, weight: Tensor) -> dict[str, Tensor]:
        return {_EDGE_WEIGHT: weight} if self._weighted else {}

    def forward(self, x: Tensor, graph: QuotientEdges[Tensor]) -> Tensor:
        """Compute (colours before, width) to (colours after, width)."""
        own = x if graph.roots is None else propagate(x, graph.roots)
        results: list[Tensor] = [
            convolution((x, own), edges, **self._keywords(weight.to(x.dtype)))
            for convolution, edges, weight in zip(self.convolutions, graph.directions, graph.weights, strict=True)
        ]
        return reduce(Tensor.add, results)


def _make(kind: type[nn.Module], width: int, arguments: Mapping[str, Any]) -> nn.Module:
    from torch_geometric.nn import EdgeConv

    known = inspect.signature(kind).parameters
    given: dict[str, Any] = dict(arguments)
    heads = given.get("heads", 1) if given.get("concat", "concat" in known) else 1
    if "nn" in known and known["nn"].default is inspect.Parameter.empty:
        given["nn"] = mlp(2 * width if issubclass(kind, EdgeConv) else width, width, width)
    elif "out_channels" in known:
        if width % heads:
            raise ValueError(f"heads={heads} does not divide model.width={width}")
        given |= {"in_channels": width, "out_channels": width // heads}
    elif "channels" in known:
        given["channels"] = width
    if "add_self_loops" in known:
        given.setdefault("add_self_loops", False)  # they are edges of the quotient graph
    made: nn.Module = kind(**given)
    return made


def is_operator(kind: object) -> TypeGuard[type[nn.Module]]:
    """Return whether an object is a class of message passing operators."""
    from torch_geometric.nn import MessagePassing  # takes as long to import as PyTorch

    return isinstance(kind, type) and issubclass(kind, MessagePassing)


def own_operator(name: str) -> type[nn.Module] | None:
    """Return PyTorch Geometric's message passing operator of a name, None if there is none."""
    if not name[:1].isupper():
        return None
    import torch_geometric.nn as operators

    kind = getattr(operators, name, None)
    if kind is None and (similar := [known for known in dir(operators) if known.lower() == name.lower()]):
        raise UnknownNameError(f"expected {similar[0]}, in these upper and lower case letters")
    return kind if is_operator(kind) else None
