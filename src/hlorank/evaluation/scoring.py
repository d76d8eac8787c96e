"""Scores of any number of configurations of a graph of any size, in bounded memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import GraphInputs

# Tensors of (reached nodes, configurations, width) that live at once in a layer without gradients.
_LIVE_STATES = 8


@torch.no_grad()
def sum_segments(model: CostModel, graph: GraphInputs, rows: NDArray[np.int64], memory_bytes: int) -> Tensor:
    """Sums fresh embeddings of all segments under some distinct configurations.

    Segments are computed one after the other, each for as many distinct local configurations at once as fit.

    Args:
        model: the cost model; it is put into evaluation mode while it computes.
        graph: the graph, cut into the segments that the model was trained on.
        rows: (configurations,) int64, indices of distinct configurations.
        memory_bytes: bound of the activations; at least one configuration is computed at once.

    Returns:
        (configurations, width * poolings).
    """
    was_training = model.training
    model.eval()
    parameter = next(model.parameters())
    total = parameter.new_zeros(len(rows), model.embedding_width)
    for j, segment in enumerate(graph.segments):
        reached = max(1, segment.reached(model.config.layers))
        chunk = max(1, memory_bytes // (reached * model.config.width * parameter.element_size() * _LIVE_STATES))
        distinct, standing_for = graph.distinct(rows, j)
        embedded = torch.cat(
            [
                model.embed(segment, graph.configurations(distinct[start : start + chunk], segment))
                for start in range(0, len(distinct), chunk)
            ]
        )
        total += embedded[standing_for]
    model.train(was_training)
    return total


@torch.no_grad()
def score_configurations(
    model: CostModel, graph: GraphInputs, rows: NDArray[np.int64], memory_bytes: int
) -> NDArray[np.float64]:
    """Scores distinct configurations; the arguments are those of `sum_segments`.

    Returns:
        (configurations,) float64, larger = slower.
    """
    scores = model.score(sum_segments(model, graph, rows, memory_bytes), len(graph.segments))
    result: NDArray[np.float64] = scores.double().cpu().numpy()
    return result
