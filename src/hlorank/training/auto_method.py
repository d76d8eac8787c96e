"""`method: auto`: the training method by what a step of each one would compute, and by the memory it may take."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.models.compression.declarations import Mixing
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import input_sizes
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.methods import METHODS
from hlorank.training.step_plans import PlannedStep, StepPlanner

log = logging.getLogger(__name__)

# A backward pass computes about two forward passes, and states of several parts are computed once more for it.
_WITH_GRADIENT, _IN_PARTS = 3, 4
# Whole graphs rather than fresh embeddings, and those rather than stale ones, as long as a step takes no more than this
# many times as long as the shortest: docs/explanation/gst-measured.md.
_WORTH = 2.0
_STEPS = 8  # that are planned, each of another graph


def choose_method(config: Config) -> str:
    """Choose between full, gst and gst_e for a collection, and log the choice and its reason.

    In this order, the first is chosen that fits into `trainer.memory_bytes` and whose step computes at most twice the
    node states of the cheapest; states with gradient count three times, and four times if they are computed in parts.
    gst_e computes the share of the other segments that its table is expected to lack.

    Args:
        config: the whole configuration.

    Raises:
        DataError: features or segments are missing.
        ConfigError: no method fits.
    """
    from hlorank.training.step_data import StepData  # imports Lightning, which takes seconds
    from hlorank.training.step_memory import bound_memory

    collection, memory_bytes = Collection.parse(config.collection), config.trainer.memory_bytes
    if collection.kind == "tile":
        log.info("method auto: full, as each tile kernel is one segment")
        return "full"
    features, segments = (Path(root) / collection.path for root in (config.paths.features, config.paths.segments))
    cut, whole = GraphLoader(features, segments), GraphLoader(features, None)
    entries = cut.store.entries("train")
    counts = [_local_counts(cut, name) for name in cut.store.trainable("train")]
    if max(map(len, counts), default=1) == 1:
        log.info("method auto: full, as no graph has several segments to train")
        return "full"

    # Plan some steps under either form of the graphs.
    with torch.random.fork_rng(devices=[]):  # the global generator is left as it was
        model = CostModel(config.model, input_sizes(cut.store.spec), config.segments.aggregation)
    full, gst = (
        StepData(graphs, StepPlanner.of(model, METHODS[name]), config.trainer, config.segments, config.seed)
        for name, graphs in (("full", whole), ("gst", cut))
    )
    keys = [(0, index) for index in range(min(_STEPS, len(counts)))]
    kept = {"full": _rows(map(full.planned_step, keys))[0]}
    kept["gst"], others = _rows(map(gst.planned_step, keys))

    # Count the passes of each method.
    costs, reasons, largest = dict[str, float](), list[str](), max(full.train, key=lambda name: entries[name].nodes)
    for name, data in (("full", full), ("gst", gst)):
        try:
            most_rows = memory_bytes / bound_memory(model, data, largest, memory_bytes)
        except ConfigError as error:
            if name == "gst":
                raise
            reasons.append(str(error))
            continue
        costs[name] = kept[name] * (_WITH_GRADIENT if kept[name] <= most_rows else _IN_PARTS)
    sampled, costs["gst"] = costs["gst"], costs["gst"] + others
    if Mixing.CONFIGURATIONS in model.recipe.mixing:
        reasons.append("no table, as an embedding depends on the other configurations of its step")
    else:
        missing = _missing(config, counts, model.embedding_width)
        costs["gst_e"] = sampled + missing * others
        reasons.append(f"the table is expected to lack {missing:.0%}")
    chosen = next(name for name, cost in costs.items() if cost <= _WORTH * min(costs.values()))
    steps = ", ".join(f"{name} {cost:,.0f}" for name, cost in costs.items())
    log.info("method auto: %s; states of a step, by passes: %s; %s", chosen, steps, "; ".join(reasons))
    return chosen


def _local_counts(graphs: GraphLoader, name: str) -> NDArray[np.int64]:
    """Return the number of local configurations of each segment of a training graph."""
    cut = graphs.open_partition("train", name)
    return np.ones(1, dtype=np.int64) if cut is None else cut.local_counts


def _rows(steps: Iterable[PlannedStep]) -> tuple[float, float]:
    """Return the node states of a step, the mean over some: of the segments with gradient, and of the others."""
    counts = [[sum(part.plan.rows for part in parts) for parts in (step.sampled, step.others)] for step in steps]
    sampled, others = np.mean(counts, axis=0)
    return float(sampled), float(others)


def _missing(config: Config, counts: Sequence[NDArray[np.int64]], width: int) -> float:
    """Estimate the share of the embeddings that a step of gst_e looks up and does not find.

    Draws of a working set are taken for independent: of L local configurations, n draws find L (1 - (1 - 1 / L)^n).
    Each is computed when a working set has it for the first time, and again if the table has no place for all of them.

    Args:
        config: the whole configuration.
        counts: of each graph the number of local configurations of each segment.
        width: numbers in an embedding.
    """
    settings, trainer = config.segments, config.trainer
    table = EmbeddingTable(width, settings.table_bytes, settings.table_dtype)
    bound = settings.configs_per_graph or np.inf
    local = np.concatenate(counts).clip(max=bound)
    if max(float(one.clip(max=bound).sum()) for one in counts) > table.capacity:
        return 1.0
    epochs = min(settings.redraw_epochs, trainer.max_epochs)
    visits = max(1.0, epochs * trainer.steps_per_epoch * trainer.graphs_per_step / len(counts))

    def found(draws: float) -> float:
        return float((local * (1 - (1 - 1 / local) ** draws)).sum())

    first = found(visits * trainer.configs_per_step) / (visits * found(trainer.configs_per_step))
    return max(first, 1 - table.capacity / float(local.sum()))
