"""Layers on dense states, and models in compressed and dense form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hlorank.models.compression.build_plan import quotient_graph
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import Mixing, Recipe
from hlorank.models.compression.plan import DenseIndex, MaskIndex, NodeIndex
from hlorank.models.compression.segment import Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Layer, run
from hlorank.models.layers.registry import LAYERS
from hlorank.models.plan_tensors import PackedPlan, tensors

CPU = torch.device("cpu")

REPRODUCED = [f"reproductions:{name}" for name in ("ConfigurationGate", "EdgeMlp")]
ALL_LAYERS = [*sorted(LAYERS), *REPRODUCED]
ONE_OF_EACH_MIXING = ["mlp", "sage", "instance_norm", "configuration_attention"]


def run_dense(layer: Layer, x: Tensor, segment: Segment) -> Tensor:
    """Run a layer on the states of all nodes under all configurations, (nodes, configurations, width)."""
    nodes, configurations = x.shape[:2]
    dense = Colouring.identity(nodes, configurations)
    graph = None
    if layer.edges is not None:
        graph = quotient_graph(dense, dense, segment.edges.neighbourhood(layer.edges), layer.edges)
    index: Any = {
        Mixing.ROW: MaskIndex(None, nodes) if layer.by_node else None,
        Mixing.NEIGHBOURS: graph,
        Mixing.SEGMENT: DenseIndex(None, nodes, graph),
        Mixing.CONFIGURATIONS: NodeIndex(nodes, (), None),
    }[layer.mixing]
    return run(layer, x.flatten(0, 1), tensors(index, CPU)).view(nodes, configurations, -1)


def colouring_of(segment: Segment, configurations: int, share: bool) -> Colouring:
    """Return a random colouring; configurations share colours at a node, and with `share` nodes do too."""
    rng = np.random.default_rng(segment.nodes)
    prefix = segment.configurable
    keys = np.where(share, rng.integers(5, size=segment.nodes), np.arange(segment.nodes)) * 10
    return Colouring.of_keys(keys[:prefix, None] + rng.integers(1, 3, size=(prefix, configurations)), keys[prefix:])


def embed_rows(model: CostModel, graph: GraphInputs, j: int, rows: np.ndarray) -> Tensor:
    """Compute the embedding of segment j of a graph under distinct configurations, (rows, width * poolings)."""
    result: Tensor = model(PackedPlan(graph.plan({j: rows}, model.recipe)).unpack())
    return result


def both_forms(
    model: CostModel, graph: GraphInputs, rows: np.ndarray, parameters: Sequence[Tensor] | None = None
) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """Return embeddings of all segments and gradients of parameters, in the compressed and in the dense form."""
    results, recipe = [], model.recipe
    forms: list[Recipe] = [recipe, replace(recipe, compress=False, deduplicate=False)]
    for form in forms:
        model.recipe = form
        embedded = torch.cat([embed_rows(model, graph, j, rows) for j in range(len(graph.segments))])
        towards = torch.linspace(-1, 1, embedded.numel(), dtype=embedded.dtype).cos().view_as(embedded)
        learned = list(model.parameters()) if parameters is None else list(parameters)
        gradients = torch.autograd.grad((embedded * towards).sum(), learned, allow_unused=True)
        results.append((embedded, tuple(torch.zeros(()) if g is None else g for g in gradients)))
    model.recipe = recipe
    return results
