"""`method: auto`: choice of the training method by the states that a step of each method computes, and by memory."""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.config import Config, ConfigError
from hlorank.models.compression.declarations import Mixing
from hlorank.models.cost_model import CostModel
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.process_group import ALONE
from hlorank.training.setup import Setup
from hlorank.training.step_plans import measure_step

log = logging.getLogger(__name__)

# A backward pass computes about two forward passes, and states of several parts are computed once more for it.
_WITH_GRADIENT, _IN_PARTS = 3, 4
# Whole graphs are preferred to fresh embeddings, and fresh to stale embeddings, as long as a step takes at most this
# many times as long as the shortest: docs/explanation/gst-measured.md.
_MAX_SLOWDOWN = 2.0
_STEPS = 8  # number of planned steps, each of another graph


def choose_method(full: Setup, gst: Setup) -> str:
    """Choose between full, gst and gst_e for a collection, and log the choice and its reason.

    In this order, the first method is chosen that fits into `trainer.memory_bytes` and whose step computes at most
    twice the node states of the cheapest. Of the segments without gradient, gst_e computes the share that its table is
    expected to lack. A ConfigError says that no method fits.
    """
    partitions = (gst.graphs.open_partition("train", name) for name in gst.train)  # open one by one
    counts = [np.ones(1, dtype=np.int64) if opened is None else opened.local_counts for opened in partitions]
    if max(map(len, counts), default=1) == 1:
        log.info("method auto: full, as no graph has several segments to train")
        return "full"
    costs, reasons, model = _costs(full, gst)
    if Mixing.CONFIGURATIONS in model.recipe.mixing:
        reasons.append("no table, as an embedding depends on the other configurations of its step")
        del costs["gst_e"]
    else:
        missing = _missing(gst.config, counts, model.embedding_width)
        sampled, others = costs["gst_e"]
        costs["gst_e"] = sampled, missing * others
        reasons.append(f"the table is expected to lack {missing:.0%}")
    sums = {name: sum(cost) for name, cost in costs.items()}
    chosen = next(name for name, cost in sums.items() if cost <= _MAX_SLOWDOWN * min(sums.values()))
    steps = ", ".join(f"{name} {cost:,.0f}" for name, cost in sums.items())
    log.info("method auto: %s; states of a step, by passes: %s; %s", chosen, steps, "; ".join(reasons))
    return chosen


def _costs(full: Setup, gst: Setup) -> tuple[dict[str, tuple[float, float]], list[str], CostModel]:
    """Plan steps; return by method the passes of states with gradient and of others, notes for the log, and a model."""
    from hlorank.training.fit import build  # imports Lightning, which takes seconds

    costs, reasons, trainer = dict[str, tuple[float, float]](), list[str](), gst.config.trainer
    keys = [(0, index) for index in range(min(_STEPS, len(gst.train)))]
    for name, setup in (("full", full), ("gst", gst)):
        model, data = build(setup, setup.members[0], ALONE)
        steps = map(data.planned_step, keys)
        states = [[sum(part.plan.states for part in parts) for parts in (step.sampled, step.others)] for step in steps]
        sampled, others = np.mean(states, axis=0).tolist()
        try:
            memory = measure_step(model, data.planner, data.largest_graph, trainer)
        except ConfigError as error:
            if name == "gst":
                raise
            reasons.append(str(error))
            continue
        passes = _WITH_GRADIENT if sampled <= trainer.memory_bytes / memory.bytes_per_state else _IN_PARTS
        costs[name] = sampled * passes, others
    costs["gst_e"] = costs["gst"]
    return costs, reasons, model


def _missing(config: Config, counts: Sequence[NDArray[np.int64]], width: int) -> float:
    """Estimate the share of the embeddings that a step of gst_e looks up and does not find.

    Draws of a working set are taken for independent: of L local configurations, n draws have L (1 - (1 - 1 / L)^n).
    Each is computed when a working set has it for the first time, and again if the table has no place for all of them.
    `counts` has the number of local configurations of each segment of each graph.
    """
    settings, trainer = config.segments, config.trainer
    table = EmbeddingTable(width, settings.table_bytes, settings.table_dtype)
    bound = settings.configs_per_graph or np.inf
    local = np.concatenate(counts).clip(max=bound)
    if max(float(count.clip(max=bound).sum()) for count in counts) > table.capacity:
        return 1.0
    epochs = min(settings.redraw_epochs, trainer.max_epochs)
    visits = max(1.0, epochs * trainer.steps_per_epoch * trainer.graphs_per_step / len(counts))

    def drawn(draws: float) -> float:
        return float((local * (1 - (1 - 1 / local) ** draws)).sum())

    first = drawn(visits * trainer.configs_per_step) / (visits * drawn(trainer.configs_per_step))
    return max(first, 1 - table.capacity / float(local.sum()))
