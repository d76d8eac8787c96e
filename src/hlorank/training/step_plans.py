"""Training steps: their draws and their plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.models.compression.build_plan import dense_rows
from hlorank.models.compression.declarations import Mixing, Recipe
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.training.methods import Method

# Parts repeat the states that do not depend on the configuration; beyond this share they save little.
_MAX_SHARE = 0.95
# Node states of segments without gradient that are computed at once. Even a small segment takes milliseconds, so small
# ones are computed together; more than these take memory and save no more time.
_ROWS_AT_ONCE = 2**14


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


class PlannedPart(NamedTuple):
    """Some segments under some configurations, which are computed at once.

    Attributes:
        plan: their plan; its embeddings are those of the first segment under each configuration, then of the next one.
        segments: the segments.
        configurations: places of the configurations among those of the step.
    """

    plan: PackedPlan
    segments: Sequence[int]
    configurations: slice


class PlannedStep(NamedTuple):
    """A training step with the plans of the segments that it computes.

    Attributes:
        number: as in `Step`.
        rows: as in `Step`.
        labels: (configurations,) float64 tensor, as in `Step`.
        with_gradient: as in `Step`.
        draws: as in `Step`.
        local: (J, configurations), the local configuration of each segment.
        others: the parts without gradient; they are computed first, as the sampled ones keep their states in memory
            for the backward pass.
        sampled: the parts with gradient.
        recomputed: the parts with gradient do not fit into memory together, and are computed again for it, one by one.
        dense_rows: the rows of the plans in the dense form.
        seconds: CPU time that it took to draw and plan the step.
    """

    number: int
    rows: NDArray[np.int64]
    labels: Tensor
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]
    local: NDArray[np.integer]
    others: list[PlannedPart]
    sampled: list[PlannedPart]
    recomputed: bool
    dense_rows: int
    seconds: float = 0

    @property
    def rows_with_gradient(self) -> int:
        """The most rows whose states are held at once for their gradients."""
        rows = [part.plan.rows for part in self.sampled]
        return max(rows) if self.recomputed else sum(rows)

    def to(self, device: torch.device) -> PlannedStep:
        """Return the step with its tensors on a device."""
        others, sampled = (
            [part._replace(plan=part.plan.to(device)) for part in parts] for parts in (self.others, self.sampled)
        )
        return self._replace(labels=self.labels.to(device, non_blocking=True), others=others, sampled=sampled)


@dataclass(frozen=True)
class StepPlanner:
    """Planning of training steps.

    Attributes:
        recipe: the steps of the model in training.
        method: determines which segments are computed.
        drop_edge: share of the edges that a step leaves out.
        max_rows: bound of the rows of a plan; segments with more are divided, a single one into parts of its
            configurations as long as these have fewer, unless a layer mixes configurations. None for no bound.
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
        graph, count = step.graph, len(step.rows)
        sampled = step.with_gradient.tolist()
        others = sorted(set(range(len(graph.segments))) - {*sampled}) if self.method.others == "fresh" else []
        kept = None
        if self.drop_edge > 0:
            kept = {j: rng.random(len(graph.segments[j].edges)) >= self.drop_edge for j in [*others, *sampled]}

        def make(recipe: Recipe, segments: Sequence[int], places: slice) -> PlannedPart:
            rows, inverse = dict.fromkeys(segments, step.rows[places]), None
            if recipe.deduplicates:
                distinct = {j: graph.distinct(own, j) for j, own in rows.items()}
                rows = {j: own for j, (own, _) in distinct.items()}
                most = max(map(len, rows.values()))
                inverse = np.concatenate([p * most + own for p, (_, own) in enumerate(distinct.values())])
            only = None if kept is None else np.concatenate([kept[j] for j in segments])
            plan = graph.plan(rows, recipe, only)._replace(inverse=inverse)
            return PlannedPart(PackedPlan(plan), segments, places)

        without = partial(make, replace(self.recipe, gradients=False))
        groups = [sampled] if self.recipe.stacks_segments else [[j] for j in sampled]
        plans = self._parts(partial(make, self.recipe), groups, count)
        return PlannedStep(
            number=step.number,
            rows=step.rows,
            labels=torch.from_numpy(step.labels),
            with_gradient=step.with_gradient,
            draws=step.draws,
            local=np.asarray(graph.partition.local_codes[step.rows]).T,
            others=self._parts(without, self._groups(graph, others), count),
            sampled=plans,
            recomputed=self.max_rows is not None and len(plans) > 1 and sum(p.plan.rows for p in plans) > self.max_rows,
            dense_rows=sum(dense_rows(self.recipe, graph.segments[j], count) for j in [*others, *sampled]),
        )

    def without_gradient(self, graph: GraphInputs, rows: Mapping[int, NDArray[np.int64]]) -> list[PlannedPart]:
        """Plan some segments, with all of their edges, each under distinct configurations of its own.

        The `configurations` of a part are places among those of each of its segments, as far as it has them.
        """
        recipe = replace(self.recipe, gradients=False)

        def make(segments: Sequence[int], places: slice) -> PlannedPart:
            places = slice(places.start, min(places.stop, max(len(rows[j]) for j in segments)))
            return PlannedPart(PackedPlan(graph.plan({j: rows[j][places] for j in segments}, recipe)), segments, places)

        return self._parts(make, self._groups(graph, list(rows)), max(map(len, rows.values()), default=0))

    def _groups(self, graph: GraphInputs, segments: Sequence[int]) -> list[list[int]]:
        """Divide segments into groups that are computed at once."""
        if not self.recipe.stacks_segments:
            return [[j] for j in segments]
        groups: list[list[int]] = []
        free = 0
        for j in segments:
            rows = dense_rows(self.recipe, graph.segments[j], 1)
            if not groups or rows > free:
                groups.append([])
                free = _ROWS_AT_ONCE
            groups[-1].append(j)
            free -= rows
        return groups

    def _parts(
        self, make: Callable[[Sequence[int], slice], PlannedPart], groups: list[list[int]], configurations: int
    ) -> list[PlannedPart]:
        """Plan groups of segments, under the first `configurations` of each, in parts within the bound of rows."""
        return [part for group in groups for part in self._divided(make, make(group, slice(0, configurations)))]

    def _divided(self, make: Callable[[Sequence[int], slice], PlannedPart], part: PlannedPart) -> list[PlannedPart]:
        if self.max_rows is None or part.plan.rows <= self.max_rows:
            return [part]
        count, places = len(part.segments), part.configurations
        middle = (places.start + places.stop) // 2
        if count > 1:
            halves = [make(part.segments[: count // 2], places), make(part.segments[count // 2 :], places)]
        elif middle > places.start and Mixing.CONFIGURATIONS not in self.recipe.mixing:
            halves = [make(part.segments, slice(places.start, middle)), make(part.segments, slice(middle, places.stop))]
            if max(half.plan.rows for half in halves) > _MAX_SHARE * part.plan.rows:
                return [part]
        else:
            return [part]
        return [piece for half in halves for piece in self._divided(make, half)]
