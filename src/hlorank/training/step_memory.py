"""Memory of a training step: bytes of a node state, and the bound of the states that a segment computes at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.models.compression.declarations import Mixing
from hlorank.models.cost_model import CostModel
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import PlannedStep, Step

# The backward pass needs gradients of some states besides what the forward pass keeps. The peak of both is 1.1 to 1.3
# times what is kept for GraphSAGE, GCN, an MLP of edges and linear attention, and 1.6 times for GATv2.
_BACKWARD = 1.6


def bytes_per_row(model: CostModel, step: PlannedStep) -> float:
    """Measure the memory of a step in bytes for each row of work of its plans.

    What autograd keeps of a forward pass is counted, whatever the layers are, except for the parameters. A model whose
    layers mix no states has no rows: all counts as one.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    plans = [part.plan for part in step.sampled]
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _embeddings = [model(plan.unpack()) for plan in plans]  # they hold what is kept
    return _BACKWARD * sum(kept.values()) / max(1, sum(plan.rows for plan in plans))


def bound_memory(model: CostModel, data: StepData, largest: str, memory_bytes: int) -> float:
    """Bound the rows that the steps of a training compute at once, so that they fit into some memory.

    Args:
        model: the cost model, on the CPU.
        data: the steps; their planner gets the bound.
        largest: the training graph with the most nodes.
        memory_bytes: the memory of a step.

    Returns:
        The bytes of a row.

    Raises:
        ConfigError: a segment of the largest graph does not fit under a single configuration.
    """
    # The segment with the most nodes, under what cannot be divided: measuring it takes no more than a step would.
    number = data.train.index(largest)
    graph = data.train_graph(number)
    j = int(np.argmax([segment.nodes for segment in graph.segments]))
    count = data.settings.configs_per_step if Mixing.CONFIGURATIONS in model.recipe.mixing else 1
    rows, labels = graph.targets
    step = data.plan(
        Step(graph, number, rows[:count], labels[:count], np.array([j]), np.ones(len(graph.segments))), (0, 0)
    )
    per_row = bytes_per_row(model, step)
    if (needed := int(per_row * step.rows_with_gradient)) > memory_bytes:
        which = "" if len(graph.segments) == 1 else f"a segment of {graph.segments[j].nodes} nodes of "
        remedy = "set method to gst" if len(graph.segments) == 1 else "lower partition.max_nodes"
        raise ConfigError(
            f"trainer.memory_bytes={memory_bytes}: {which}the graph {largest}, under {count} "
            f"configuration{'s' * (count > 1)}, needs about {needed}; {remedy}, or raise it"
        )
    data.planner = replace(data.planner, max_rows=int(memory_bytes / per_row))
    return per_row
