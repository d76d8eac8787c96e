"""Training steps: their draws and their plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.models.compression.plan import Array, Plan
from hlorank.models.compression.recipe import Mixing, Recipe
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.training.gst.methods import Method

# Parts repeat the states that do not depend on the configuration; beyond this share they save little.
_MAX_SHARE = 0.95


class Step(NamedTuple):
    """Draw of a training step on one graph; J is the number of its segments.

    Attributes:
        graph: the graph.
        number: the graph's number among those that are trained on, for the keys of the embedding table.
        rows: (configurations,) int64, distinct configurations.
        labels: (configurations,) float64, their runtimes.
        with_gradient: (S,) int64, the segments that are computed with gradient, increasing.
        draws: (J,) float64, uniform in [0, 1), which decide on stale-embedding dropout.
    """

    graph: GraphInputs
    number: int
    rows: NDArray[np.int64]
    labels: NDArray[np.float64]
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]


class PlannedStep(NamedTuple):
    """A training step with the plans of the segments that it computes.

    Attributes:
        number: as in `Step`.
        rows: as in `Step`.
        labels: (configurations,) float64 tensor, as in `Step`.
        with_gradient: as in `Step`.
        draws: as in `Step`.
        local: (J, configurations), the local configuration of each segment.
        plans: the plans of each segment that is computed, one for each part of its configurations; segments without
            gradient come first, as the others keep their states in memory for the backward pass.
        dense_rows: the rows of the plans in the dense form.
        seconds: CPU time that it took to draw and plan the step.
    """

    number: int
    rows: NDArray[np.int64]
    labels: Tensor
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]
    local: NDArray[np.integer]
    plans: dict[int, list[PackedPlan]]
    dense_rows: int
    seconds: float = 0

    @property
    def rows_with_gradient(self) -> int:
        """The most rows whose states are held at once for their gradients: of several parts, those of one."""
        parts = [[part.rows for part in self.plans[j]] for j in self.with_gradient.tolist()]
        kept = sum(rows[0] for rows in parts if len(rows) == 1)
        return kept + max((max(rows) for rows in parts if len(rows) > 1), default=0)

    def to(self, device: torch.device) -> PlannedStep:
        """Return the step with its tensors on a device."""
        plans = {j: [part.to(device) for part in parts] for j, parts in self.plans.items()}
        return self._replace(labels=self.labels.to(device, non_blocking=True), plans=plans)


@dataclass(frozen=True)
class StepPlanner:
    """Planning of training steps.

    Attributes:
        recipe: the steps of the model in training.
        method: determines which segments are computed.
        drop_edge: share of the edges that a step leaves out.
        max_rows: bound of the rows of a plan; a segment with more is divided into parts of its configurations, as long
            as these have fewer, unless a layer mixes configurations. None for no bound.
    """

    recipe: Recipe
    method: Method
    drop_edge: float
    max_rows: int | None = None

    @classmethod
    def of(cls, model: CostModel, method: Method) -> StepPlanner:
        """Return the planner for a model and a method, without a bound."""
        return cls(replace(model.recipe, share=model.config.dropout == 0), method, model.config.drop_edge)

    def __call__(self, step: Step, rng: np.random.Generator) -> PlannedStep:
        """Make the plans of a step.

        Args:
            step: the step.
            rng: draws the edges that are left out.
        """
        graph, plans, dense_rows = step.graph, dict[int, list[PackedPlan]](), 0
        sampled = step.with_gradient.tolist()
        others = sorted(set(range(len(graph.segments))) - {*sampled}) if self.method.others == "fresh" else []
        for j in [*others, *sampled]:
            segment = graph.segments[j]
            kept = rng.random(len(segment.edges)) >= self.drop_edge if self.drop_edge > 0 else None
            recipe = replace(self.recipe, gradients=j in sampled)
            make = partial(graph.plan, j=j, recipe=recipe, kept_edges=kept)
            plans[j] = [PackedPlan(part) for part in self._parts(make, step.rows, make(step.rows))]
            dense_rows += self.recipe.dense_rows(segment, len(step.rows))
        local = np.asarray(graph.partition.local_codes[step.rows]).T
        labels = torch.from_numpy(step.labels)
        return PlannedStep(step.number, step.rows, labels, step.with_gradient, step.draws, local, plans, dense_rows)

    def without_gradient(self, graph: GraphInputs, rows: NDArray[np.int64], j: int) -> list[PackedPlan]:
        """Make the plans of segment j under some distinct configurations, with all of its edges, part by part."""
        make = partial(graph.plan, j=j, recipe=replace(self.recipe, gradients=False))
        return [PackedPlan(part) for part in self._parts(make, rows, make(rows))]

    def _parts(
        self, make: Callable[[NDArray[np.int64]], Plan[Array]], rows: NDArray[np.int64], plan: Plan[Array]
    ) -> list[Plan[Array]]:
        """Return the plans of the parts of a segment's configurations, in their order; `plan` is that of all rows."""
        divisible = len(rows) > 1 and Mixing.CONFIGURATIONS not in self.recipe.mixing
        if self.max_rows is None or plan.rows <= self.max_rows or not divisible:
            return [plan]
        halves = [(half, make(half)) for half in np.array_split(rows, 2)]
        if max(part.rows for _, part in halves) > _MAX_SHARE * plan.rows:
            return [plan]
        return [part for half, planned in halves for part in self._parts(make, half, planned)]
