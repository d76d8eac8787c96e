"""The interface of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.models.compression.edges import EdgeKind
from hlorank.models.compression.plan import DenseIndex, NodeIndex, StepIndex
from hlorank.models.compression.recipe import Mix, Mixing


class Layer(nn.Module):
    """A layer of the cost model.

    A layer declares its `mixing`, from which follow the states that it reads and the index in the plan:

    - ROW: (states, width), each state by itself.
    - NEIGHBOURS: (colours before, width), with a `QuotientGraph` to the colours after, or in the form of
      `edges`, `QuotientEdges` or `QuotientPieces`.
    - SEGMENT: the dense form, (nodes, configurations, width), with such a graph of it if `edges` is not None. All
      layers after it are dense, too.
    - CONFIGURATIONS: (colours, width), with a `NodeIndex`; see `map_nodes`.

    Attributes:
        mixing: the states on which a new state depends.
        edges: the edges that it uses, if it uses any.
        by_node: a ROW layer gets a `MaskIndex`.
    """

    mixing: ClassVar[Mixing]
    by_node: ClassVar[bool] = False
    edges: EdgeKind | None = None

    @property
    def declaration(self) -> Mix:
        """The declaration of the layer, for plans."""
        return Mix(self.mixing, self.edges, self.by_node)

    def forward(self, x: Tensor, index: Any) -> Tensor:
        """Compute the new states, in the form of x; (colours after, width) with NEIGHBOURS."""
        raise NotImplementedError


def run(layer: Layer, values: Tensor, index: StepIndex[Tensor]) -> Tensor:
    """Run a layer on states, (states, width), along the index of its step in a plan."""
    if isinstance(index, DenseIndex):
        states = values if index.states is None else embedding(index.states, values)
        dense: Tensor = layer(states.view(index.nodes, -1, values.shape[1]), index.graph)
        return dense.flatten(0, 1)
    result: Tensor = layer(values, index)
    return result


def map_nodes(function: Callable[[Tensor], Tensor], values: Tensor, index: NodeIndex[Tensor]) -> Tensor:
    """Apply a function to the states of nodes, all configurations of a node at once.

    Args:
        function: of (some nodes, configurations, width) to the same shape.
        values: (colours, width).
        index: the nodes.

    Returns:
        (colours, width).
    """
    if index.colour is None:
        return function(values.view(index.nodes, -1, values.shape[1])).flatten(0, 1)
    parts = [function(embedding(part, values)).flatten(0, 1) for part in index.parts]
    return embedding(index.colour, torch.cat(parts))


class RowLayer(Layer):
    """A layer that computes each state by itself, with a module over the last axis.

    Args:
        module: (..., width) to the same shape.
    """

    mixing = Mixing.ROW

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, _: None) -> Tensor:
        """Compute (states, width) to the same shape."""
        result: Tensor = self.module(x)
        return result
