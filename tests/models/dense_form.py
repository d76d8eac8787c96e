"""Layers on dense states, models in compressed and dense form, and the dense form written with dense matrices."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu

from hlorank.featurize.features import TileFeatures
from hlorank.models.compression.build_plan import quotient_graph
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import Mixing, Recipe
from hlorank.models.compression.plan import DenseIndex, MaskIndex, NodeIndex
from hlorank.models.compression.segment import Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers import registry
from hlorank.models.layers.layer import Layer, run
from hlorank.models.plan_tensors import PackedPlan, tensors
from tests.graphs import MODEL

CPU = torch.device("cpu")
ROWS = np.array([3, 0, 7, 7, 11, 5, 2])
assert_exact = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)


RANDOM: dict[str, st.SearchStrategy[int]] = {
    "nodes": st.integers(8, 60),
    "segments": st.integers(1, 4),
    "seed": st.integers(0, 10**6),
    "distinct": st.just(4),
}
"""Arguments of `make_inputs`."""


def block(*more: str) -> list[str]:
    """Return the usual block with more layers after message passing."""
    return ["layer_norm", "sage", *more, "gelu", "residual"]


def scores_of(model: CostModel, graph: GraphInputs, rows: np.ndarray = ROWS) -> Tensor:
    embedded = [embed_rows(model, graph, j, rows) for j in range(len(graph.segments))]
    return model.score(torch.stack(embedded).sum(dim=0), len(embedded))


def reference_embedding(model: CostModel, graph: GraphInputs, j: int, row: int) -> Tensor:
    """Compute the embedding of one configuration of one segment, with dense matrices from the graph's arrays."""
    features, encoder, config = graph.features, model.encoder, model.config
    nodes = np.flatnonzero(graph.partition.segment_of == j)
    adjacency = torch.zeros(features.nodes, features.nodes, dtype=torch.float64)
    for consumer, producer in features.edge_index:
        adjacency[consumer, producer] += 1
    operands, users = (matrix[nodes][:, nodes] for matrix in (adjacency, adjacency.T))
    operand_count, user_count = (matrix.sum(1, keepdim=True).clamp(min=1) for matrix in (operands, users))
    layouts = torch.from_numpy(features.node_layout[nodes].astype(np.int64) + 1)
    x = encoder.numeric(torch.from_numpy(features.node_feat[nodes]))
    x = x + encoder.opcode_map(encoder.opcode.weight[features.opcode[nodes].astype(int)])
    x = x + encoder.node_layout_map(encoder.layout_value.weight[layouts].flatten(1))
    configurations = features.configurations
    if isinstance(configurations, TileFeatures):
        x = x + encoder.configuration(torch.from_numpy(configurations.feat[row]))
    else:
        joined = torch.zeros_like(x)
        for column, node in enumerate(configurations.node_ids):
            if node in nodes:
                code = configurations.codes[row, column]
                values = torch.from_numpy(configurations.codebook[code].astype(int) + 1)
                sizes = torch.from_numpy(np.log2(1 + configurations.sizes[code].astype(float)) / 4)
                costs = torch.from_numpy(np.log2(1 + 1000 * configurations.costs[code].astype(float)) / 4)
                numbers = [*[sizes] * config.layout_sizes, *[costs] * config.layout_costs]
                read = [encoder.layout_value.weight[values].flatten(), *numbers]
                state = encoder.configuration(torch.cat(read))
                joined[int(np.searchsorted(nodes, node))] = state
        x = x + joined
    for layers in model.blocks:
        norm, sage, *instance_norm, _ = cast("Iterable[Any]", layers.layers)
        z, (from_itself, from_operands, from_users) = norm.module(x), sage.weights
        x_new = z @ from_itself.T + operands / operand_count @ z @ from_operands.T + sage.bias
        x_new = x_new + users / user_count @ z @ from_users.T
        for layer in instance_norm:
            centred = x_new - x_new.mean(0)
            x_new = layer.scale * centred / (centred.square().mean(0) + 1e-5).sqrt() + layer.offset
        x = x + gelu(x_new)
    x = model.post_layers.get_submodule("layers.0.module")(x)
    configured = np.zeros(features.nodes, dtype=bool)
    configured[getattr(configurations, "node_ids", slice(None))] = True
    joint = x[torch.from_numpy(configured[nodes])].sum(0)
    pooled = {"mean": x.mean(0), "sum": x.sum(0), "max": x.max(0).values}
    pooled |= {"l2_configurable_sum": joint / joint.norm(), "reproductions:l2_sum": x.sum(0) / x.sum(0).norm()}
    return torch.cat([pooled[name] for name in config.pooling])


GATE, EDGE_MLP = "reproductions:ConfigurationGate", "reproductions:EdgeMlp"
ALL_LAYERS = [*sorted(registry.LAYERS), GATE, EDGE_MLP]


def make_layer(name: str, **changes: Any) -> Any:
    """Make a layer by its name, in float64; keywords change the configuration."""
    torch.manual_seed(0)
    config = MODEL.model_copy(update=changes)
    return registry.make_layer(name, config, "model.block", config.width).double()


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
        Mixing.CONFIGURATIONS: NodeIndex(configurations, None, None),
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
    forms: list[Recipe] = [recipe, replace(recipe, compress=False)]
    for form in forms:
        model.recipe = form
        embedded = torch.cat([embed_rows(model, graph, j, rows) for j in range(len(graph.segments))])
        towards = torch.linspace(-1, 1, embedded.numel(), dtype=embedded.dtype).cos().view_as(embedded)
        learned = list(model.parameters()) if parameters is None else list(parameters)
        gradients = torch.autograd.grad((embedded * towards).sum(), learned, materialize_grads=True)
        results.append((embedded, gradients))
    model.recipe = recipe
    return results
