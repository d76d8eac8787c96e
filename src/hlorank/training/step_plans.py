"""Training steps: their draws, their plans, and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import ConfigError, TrainerConfig
from hlorank.files import counted
from hlorank.models.compression.build_plan import dense_states
from hlorank.models.compression.declarations import Mixing, Recipe
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.plan_tensors import PackedPlan
from hlorank.training.methods import Method

# Parts repeat the states that do not depend on the configuration; beyond this share they save little.
_MAX_SHARE = 0.95
# Node states of segments without gradient that are computed at once. Even a small segment takes milliseconds, so small
# segments are computed together; more states take memory and save no more time.
_STATES_AT_ONCE = 2**14
# The backward pass needs gradients of some states besides what the forward pass keeps. The peak of both is 1.1 to 1.3
# times what is kept for GraphSAGE, GCN, an MLP of edges and linear attention, and 1.6 times for GATv2.
_BACKWARD = 1.6


class Step(NamedTuple):
    """Draw of a training step on one graph of J segments."""

    graph: GraphInputs
    number: int  # of the graph among the graphs that are trained on, for the keys of the embedding table
    configurations: NDArray[np.int64]  # (configurations,), distinct
    labels: NDArray[np.float64]  # (configurations,), their runtimes
    with_gradient: NDArray[np.int64]  # (S,), the segments that are computed with gradient, increasing
    draws: NDArray[np.float64]  # (J,), uniform in [0, 1), which decide on stale-embedding dropout


class PlannedPart(NamedTuple):
    """Segments under the configurations at `places` of the step, which are computed at once.

    The plan gives the embeddings of the first segment under each configuration, then of the next segment.
    """

    plan: PackedPlan
    segments: Sequence[int]
    places: slice


class PlannedStep(NamedTuple):
    """A training step with the plans of the segments that it computes; its first five fields are fields of `Step`."""

    number: int
    configurations: NDArray[np.int64]
    labels: Tensor
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]
    local: NDArray[np.integer]  # (J, configurations), the local configuration of each segment
    others: list[PlannedPart]  # without gradient, computed first: sampled parts keep states for the backward pass
    sampled: list[PlannedPart]  # with gradient
    recomputed: bool  # the sampled parts do not fit into memory together: the backward pass computes each again
    dense_states: int  # the states of the plans in the dense form

    @property
    def states_with_gradient(self) -> int:
        """The most states that are held at once for their gradients."""
        states = [part.plan.states for part in self.sampled]
        return max(states) if self.recomputed else sum(states)

    def to(self, device: torch.device) -> PlannedStep:
        """Return the step with its tensors on a device."""
        both = self.others, self.sampled
        others, sampled = ([part._replace(plan=part.plan.to(device)) for part in parts] for parts in both)
        return self._replace(labels=self.labels.to(device, non_blocking=True), others=others, sampled=sampled)


@dataclass(frozen=True)
class StepPlanner:
    """Planning of training steps of a model by its recipe; a step leaves out a share of the edges, `drop_edge`.

    Parts with more states than `max_states` are divided by segments, and a single segment by configurations, as long as
    its parts have fewer states, and unless a layer mixes configurations.
    """

    recipe: Recipe
    method: Method
    drop_edge: float
    max_states: int | None = None

    @classmethod
    def of(cls, model: CostModel, method: Method, max_states: int | None = None) -> StepPlanner:
        """Return the planner for a model and a method."""
        return cls(replace(model.recipe, share=model.config.dropout == 0), method, model.config.drop_edge, max_states)

    def __call__(self, step: Step, rng: np.random.Generator | None = None) -> PlannedStep:
        """Make the plans of a step; with `drop_edge`, the generator draws the edges that are left out."""
        graph, count = step.graph, len(step.configurations)
        sampled = step.with_gradient.tolist()
        others = sorted(set(range(len(graph.segments))) - {*sampled}) if self.method.others == "fresh" else []
        kept = None
        if self.drop_edge > 0:
            assert rng is not None
            kept = {j: rng.random(len(graph.segments[j].edges)) >= self.drop_edge for j in [*others, *sampled]}

        def make(recipe: Recipe, segments: Sequence[int], places: slice) -> PlannedPart:
            chosen, inverse = dict.fromkeys(segments, step.configurations[places]), None
            if recipe.compress and Mixing.CONFIGURATIONS not in recipe.mixing:
                distinct = {j: graph.distinct(own, j) for j, own in chosen.items()}
                chosen = {j: own for j, (own, _) in distinct.items()}
                most = max(map(len, chosen.values()))
                inverse = np.concatenate([p * most + own for p, (_, own) in enumerate(distinct.values())])
            only = None if kept is None else np.concatenate([kept[j] for j in segments])
            plan = graph.plan(chosen, recipe, only)._replace(inverse=inverse)
            return PlannedPart(PackedPlan(plan), segments, places)

        without = partial(make, replace(self.recipe, gradients=False))
        groups = [sampled] if self.recipe.stacks_segments else [[j] for j in sampled]
        parts = self._parts(partial(make, self.recipe), groups, count)
        bound = np.inf if self.max_states is None else self.max_states
        return PlannedStep(
            number=step.number,
            configurations=step.configurations,
            labels=torch.from_numpy(step.labels),
            with_gradient=step.with_gradient,
            draws=step.draws,
            local=np.asarray(graph.partition.local_codes[step.configurations]).T,
            others=self._parts(without, self._groups(graph, others), count),
            sampled=parts,
            recomputed=len(parts) > 1 and sum(part.plan.states for part in parts) > bound,
            dense_states=sum(dense_states(self.recipe, graph.segments[j], count) for j in [*others, *sampled]),
        )

    def without_gradient(self, graph: GraphInputs, chosen: Mapping[int, NDArray[np.int64]]) -> list[PlannedPart]:
        """Plan segments with all of their edges, each under the distinct configurations that `chosen` has for it.

        The `places` of a part count the configurations of each of its segments, which may have fewer.
        """
        recipe = replace(self.recipe, gradients=False)

        def make(segments: Sequence[int], places: slice) -> PlannedPart:
            places = slice(places.start, min(places.stop, max(len(chosen[j]) for j in segments)))
            plan = graph.plan({j: chosen[j][places] for j in segments}, recipe)
            return PlannedPart(PackedPlan(plan), segments, places)

        return self._parts(make, self._groups(graph, list(chosen)), max(map(len, chosen.values()), default=0))

    def _groups(self, graph: GraphInputs, segments: Sequence[int]) -> list[list[int]]:
        """Divide segments into groups that are computed at once."""
        if not self.recipe.stacks_segments:
            return [[j] for j in segments]
        groups: list[list[int]] = []
        free = 0
        for j in segments:
            states = dense_states(self.recipe, graph.segments[j], 1)
            if not groups or states > free:
                groups.append([])
                free = _STATES_AT_ONCE
            groups[-1].append(j)
            free -= states
        return groups

    def _parts(
        self, make: Callable[[Sequence[int], slice], PlannedPart], groups: list[list[int]], configurations: int
    ) -> list[PlannedPart]:
        """Plan groups of segments, under the first `configurations` of each, in parts within the bound of states."""
        return [part for group in groups for part in self._divided(make, make(group, slice(0, configurations)))]

    def _divided(self, make: Callable[[Sequence[int], slice], PlannedPart], part: PlannedPart) -> list[PlannedPart]:
        if self.max_states is None or part.plan.states <= self.max_states:
            return [part]
        count, places = len(part.segments), part.places
        middle = (places.start + places.stop) // 2
        if count > 1:
            halves = [make(part.segments[: count // 2], places), make(part.segments[count // 2 :], places)]
        elif middle > places.start and Mixing.CONFIGURATIONS not in self.recipe.mixing:
            halves = [make(part.segments, slice(places.start, middle)), make(part.segments, slice(middle, places.stop))]
            if max(half.plan.states for half in halves) > _MAX_SHARE * part.plan.states:
                return [part]
        else:
            return [part]
        return [piece for half in halves for piece in self._divided(make, half)]


def bytes_per_state(model: CostModel, step: PlannedStep) -> float:
    """Measure the memory of a step, in bytes for each state of its plans.

    What autograd keeps of a forward pass is counted, whatever the layers are, except for the parameters. Plans of a
    model whose layers mix no states have 0 states, which count as 1.
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
    return _BACKWARD * sum(kept.values()) / max(1, sum(plan.states for plan in plans))


class StepMemory(NamedTuple):
    """Memory of the steps of a training: bytes of a state, and the states that fit into `trainer.memory_bytes`."""

    bytes_per_state: float
    max_states: int


def measure_step(model: CostModel, planner: StepPlanner, graph: GraphInputs, settings: TrainerConfig) -> StepMemory:
    """Measure the smallest step on the largest graph, on the CPU; a ConfigError says that it takes more memory.

    It has the segment with the most nodes, under all configurations of a step if a layer mixes configurations, as a
    part then cannot be divided, and under one configuration otherwise.
    """
    j = int(np.argmax([segment.nodes for segment in graph.segments]))
    count = settings.configs_per_step if Mixing.CONFIGURATIONS in model.recipe.mixing else 1
    chosen, labels = graph.targets
    step = Step(graph, 0, chosen[:count], labels[:count], np.array([j]), np.ones(len(graph.segments)))
    planned = replace(planner, drop_edge=0.0)(step)
    per_state = bytes_per_state(model, planned)
    if (needed := int(per_state * planned.states_with_gradient)) > settings.memory_bytes:
        single = len(graph.segments) == 1
        which = "" if single else f"a segment of {graph.segments[j].nodes} nodes of "
        remedy = "set method to gst" if single else "lower partition.max_nodes"
        raise ConfigError(
            f"trainer.memory_bytes={settings.memory_bytes}: {which}the graph {graph.features.name}, under "
            f"{counted(count, 'configuration')}, needs about {needed}; {remedy}, or raise it"
        )
    return StepMemory(per_state, int(settings.memory_bytes / per_state))
