"""Plans of training steps, the memory of a step, and its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from hlorank.config import Config, ConfigError
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.training.fit import build
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.setup import open_setup
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner, bytes_per_state, measure_step
from tests.training.training_helpers import planned

MakeInputs = Callable[..., GraphInputs]
MakeModel = Callable[..., CostModel]
ROWS = np.array([4, 1, 9, 7, 0])


def whole(model: CostModel, graph: GraphInputs) -> PlannedStep:
    return planned(model, "full", Step(graph, 0, ROWS, np.ones(len(ROWS)), np.array([0]), np.zeros(1)))


def test_a_layer_adds_the_states_that_it_keeps(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    """GELU keeps its input: in the dense form one state of each node under each configuration. Nothing else changes."""
    graph, kept, state = make_inputs(segments=1), [], torch.get_rng_state()
    for block in (["sage", "gelu", "dropout"], ["sage", "gelu", "gelu", "dropout"]):
        model = make_model(blocks=1, block=block, dropout=0.5)
        model.recipe = replace(model.recipe, compress=False)
        step = whole(model, graph)
        torch.set_rng_state(state)
        kept.append(bytes_per_state(model, step) * step.sampled[0].plan.states)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.grad is None for parameter in model.parameters())
    state = graph.segments[0].nodes * len(ROWS) * model.config.width * model.dtype.itemsize
    assert 1 <= (kept[1] - kept[0]) / state <= 2  # the backward pass needs memory too


def test_a_bound_divides_segments_and_refuses_what_is_smaller_than_a_configuration(
    settings: Callable[..., Config],
) -> None:
    setup = open_setup(settings(method="full"))
    trainer = setup.config.trainer
    model, data = build(setup, setup.members[0], ALONE)
    graph, nodes = data.largest_graph, [entry.nodes for entry in setup.graphs.store.entries("train").values()]
    assert sum(segment.nodes for segment in graph.segments) == max(nodes)
    free = measure_step(model, data.planner, graph, trainer.model_copy(update={"memory_bytes": 2**40}))
    step = data.planned_step((0, 0))
    bound = int(0.9 * free.bytes_per_state * step.states_with_gradient)
    memory = measure_step(model, data.planner, graph, trainer.model_copy(update={"memory_bytes": bound}))
    assert memory.bytes_per_state == free.bytes_per_state
    assert memory.max_states == pytest.approx(0.9 * step.states_with_gradient, abs=1)
    assert data.planner.max_states is None, "measuring changes no planner"
    _, bounded = build(replace(setup, memory=memory), setup.members[0], ALONE)
    assert bounded.planned_step((0, 0)).states_with_gradient <= memory.max_states
    with pytest.raises(ConfigError, match=r"trainer\.memory_bytes=100: "):
        measure_step(model, data.planner, graph, trainer.model_copy(update={"memory_bytes": 100}))


def test_segments_and_their_parts_share_the_bound(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model = make_model()
    model.recipe = replace(model.recipe, compress=False)
    free = StepPlanner.of(model, METHODS["gst"])
    bounded = replace(free, max_states=1)
    step = Step(make_inputs(segments=3), 0, ROWS, np.ones(len(ROWS)), np.array([0, 2]), np.zeros(3))
    whole, divided = free(step), bounded(step)
    assert [list(part.segments) for part in whole.sampled] == [[0, 2]]
    assert (whole.recomputed, whole.states_with_gradient) == (False, whole.sampled[0].plan.states)
    assert {j for part in divided.sampled for j in part.segments} == {0, 2}
    assert (len(divided.sampled), len(divided.others), divided.recomputed) == (2 * len(ROWS), len(ROWS), True)
    assert divided.states_with_gradient == max(part.plan.states for part in divided.sampled)
    parts = [planner.without_gradient(step.graph, {1: ROWS}) for planner in (free, bounded)]
    assert [*map(len, parts)] == [1, len(ROWS)]
    assert max(part.plan.states for part in parts[1]) < parts[0][0].plan.states
    shared = Step(make_inputs(segments=1), 0, np.full(4, 3), np.ones(4), np.array([0]), np.zeros(1))
    planned_step = replace(StepPlanner.of(make_model(), METHODS["full"]), max_states=1)(shared)
    assert len(planned_step.sampled) == 1, "states that all configurations share are not repeated in parts"
