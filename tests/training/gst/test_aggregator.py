"""Aggregation in the training step of every method: unbiased, with the table that the method has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.config import ConfigError, PartitionConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition, whole_graph
from hlorank.training.gst.aggregator import Aggregator, MissingPlans, StepCost
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.methods import METHODS, Method
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner
from tests.models.dense_form import embed_rows
from tests.training.training_helpers import planned, segments_config

MakeInputs = Callable[..., GraphInputs]
MakeModel = Callable[..., CostModel]
ROWS = np.array([4, 1, 9, 7, 0])
SEGMENTS = 4
CPU = torch.device("cpu")
BLOCK = ["layer_norm", "sage", "gelu", "residual"]


@pytest.fixture
def model(make_model: MakeModel) -> CostModel:
    return make_model()


class Steps(Aggregator):
    """An aggregator with a given table; what that lacks is planned by `plans`, or left out without it."""

    def __init__(
        self,
        model: CostModel,
        method: Method,
        keep: float,
        table: EmbeddingTable | None,
        plans: MissingPlans | None = None,
    ) -> None:
        missing = "reweight" if plans is None else "compute"
        super().__init__(model, method, segments_config(keep_probability=keep, missing=missing))
        self.table, self._plans = table, plans

    def run(self, step: PlannedStep, now: int) -> Tensor:
        """Complete a step, and aggregate its segments."""
        assert self._plans is not None or not self._computes_missing
        return self(self.complete(step, self._plans or plans_of(self.model, None)), now)


def step_on(
    combine: Steps,
    graph: GraphInputs,
    sampled: tuple[int, ...],
    draws: np.ndarray | None = None,
    rows: np.ndarray = ROWS,
) -> PlannedStep:
    draws = np.zeros(SEGMENTS) if draws is None else draws
    method = next(name for name, method in METHODS.items() if method is combine.method)
    return planned(combine.model, method, Step(graph, 0, rows, np.ones(len(rows)), np.array(sampled), draws))


def plans_of(model: CostModel, graph: Any) -> MissingPlans:
    planner = StepPlanner.of(model, METHODS["gst_e"])
    return lambda _, rows: planner.without_gradient(graph, rows)


def fresh_total(model: CostModel, graph: GraphInputs) -> Tensor:
    with torch.no_grad():
        return sum((embed_rows(model, graph, j, ROWS) for j in range(SEGMENTS)), torch.zeros(()))


def filled_table(model: CostModel, graph: GraphInputs, present: tuple[int, ...]) -> EmbeddingTable:
    """A table with the fresh embeddings of some segments, and of half of the configurations of one of them."""
    table = EmbeddingTable(model.embedding_width, 10**6, "float32")
    warm = Steps(model, METHODS["gst_e"], 1.0, table)
    for j in present:
        rows = ROWS[:2] if j == present[-1] else ROWS
        warm.run(step_on(warm, graph, (j,), rows=rows), now=0)
    return table


@pytest.mark.parametrize("method", ["gst_one", "gst", "gst_e", "gst_ed"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_aggregate_is_unbiased(method: str, count: int, model: CostModel, make_inputs: MakeInputs) -> None:
    """Exactly: over all samples and both outcomes of each segment's draw, with entries of the table missing."""
    graph = make_inputs(segments=SEGMENTS)
    specification, keep = METHODS[method], 0.3
    samples = list(combinations(range(SEGMENTS), count))
    outcomes = [(0.0, keep), (0.9, 1 - keep)] if specification.drop_stale else [(0.0, 1.0)]
    mean = torch.zeros(len(ROWS), model.embedding_width, dtype=torch.float64)
    for sampled in samples:
        for draw, probability in outcomes:
            table = filled_table(model, graph, (0, 2)) if specification.others == "table" else None
            combine = Steps(model, specification, keep, table)
            total = combine.run(step_on(combine, graph, sampled, np.full(SEGMENTS, draw)), now=1)
            mean += probability * total.detach() / len(samples)
    torch.testing.assert_close(mean, fresh_total(model, graph), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["gst_e", "gst_ed"])
def test_computed_entries_leave_the_aggregate_unbiased(method: str, model: CostModel, make_inputs: MakeInputs) -> None:
    """Exactly, whatever the table has; without dropping, every single aggregate is the fresh sum."""
    graph, keep = make_inputs(segments=SEGMENTS), 0.3 if METHODS[method].drop_stale else 1.0
    mean = torch.zeros(len(ROWS), model.embedding_width, dtype=torch.float64)
    for sampled in range(SEGMENTS):
        for draw, probability in ((0.0, keep), (0.9, 1 - keep)):
            table = filled_table(model, graph, (0, 2))
            combine = Steps(model, METHODS[method], keep, table, plans_of(model, graph))
            total = combine.run(step_on(combine, graph, (sampled,), np.full(SEGMENTS, draw)), now=1).detach()
            if method == "gst_e":
                torch.testing.assert_close(total, fresh_total(model, graph))
            mean += probability * total / SEGMENTS
    torch.testing.assert_close(mean, fresh_total(model, graph), rtol=1e-5, atol=1e-6)


def test_missing_entries_are_computed_once_each_and_only_where_they_are_kept(
    model: CostModel, make_inputs: MakeInputs
) -> None:
    graph = make_inputs(segments=SEGMENTS)
    distinct = [len(np.unique(graph.partition.local_codes[ROWS, j])) for j in range(SEGMENTS)]
    table = EmbeddingTable(model.embedding_width, 10**6, "float32")
    combine = Steps(model, METHODS["gst_ed"], 0.5, table, plans_of(model, graph))
    draws = np.array([0.0, 0.0, 0.9, 0.0])  # the third is dropped
    total = combine.run(step_on(combine, graph, (1,), draws), now=3)
    assert total.requires_grad
    assert len(table) == sum(distinct) - distinct[2]
    assert combine.cost.found == 0
    combine.run(step_on(combine, graph, (1,), draws), now=4)
    assert combine.cost.found == 3 * len(ROWS)
    assert len(table) == sum(distinct) - distinct[2]
    alone = StepCost()
    combine.cost = alone
    combine.run(step_on(combine, graph, (1,), draws), now=5)
    one = Steps(model, METHODS["gst_one"], 0.5, None)
    one.run(step_on(one, graph, (1,)), now=5)
    assert alone.states == one.cost.states  # nothing else is computed again


def test_entries_of_the_step_are_not_evicted_by_those_that_it_computes(
    model: CostModel, make_inputs: MakeInputs
) -> None:
    """A full table, whose oldest entries are of this step's graph."""
    graph = make_inputs(segments=SEGMENTS)
    distinct = sum(len(np.unique(graph.partition.local_codes[ROWS, j])) for j in range(SEGMENTS))
    entry = EmbeddingTable(model.embedding_width, 10**6, "float32").entry_bytes
    table = EmbeddingTable(model.embedding_width, distinct * entry, "float32")
    combine = Steps(model, METHODS["gst_e"], 1.0, table, plans_of(model, graph))
    combine.run(step_on(combine, graph, (0,), rows=ROWS[:2]), now=0)
    others = distinct - len(table)
    table.write(list(range(-others, 0)), torch.zeros(others, model.embedding_width), step=1)  # of another graph
    total = combine.run(step_on(combine, graph, (0,)), now=2)
    torch.testing.assert_close(total.detach(), fresh_total(model, graph))


def test_fresh_embeddings_are_written_once_each(model: CostModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=SEGMENTS)
    table = EmbeddingTable(model.embedding_width, 10**6, "float32")
    combine = Steps(model, METHODS["gst_ed"], 0.5, table)
    combine.run(step_on(combine, graph, (2,)), now=3)
    distinct = len(np.unique(graph.partition.local_codes[ROWS, 2]))
    assert len(table) == distinct
    assert (combine.cost.looked_up, combine.cost.found) == (SEGMENTS * len(ROWS), 0)
    combine.run(step_on(combine, graph, (1,)), now=8)
    assert combine.cost.found == len(ROWS)
    assert combine.cost.used == distinct
    assert combine.cost.staleness == 5 * distinct


@pytest.mark.parametrize("method", METHODS)
def test_a_table_keeps_nothing_that_depends_on_other_configurations(method: str, make_model: MakeModel) -> None:
    model = make_model(block=[*BLOCK, "configuration_attention"])
    if METHODS[method].others == "table":
        table = EmbeddingTable(model.embedding_width, 10**6, "float32")
        with pytest.raises(ConfigError, match=r"model\.block: with configuration_attention"):
            Steps(model, METHODS[method], 0.5, table)
    else:
        Steps(model, METHODS[method], 0.5, None)


def trained_on(model: CostModel, graph: GraphInputs, method: str) -> tuple[Tensor, list[Tensor]]:
    """Return scores and gradients of a step in which every segment has a gradient."""
    segments = len(graph.segments)
    step = planned(model, method, Step(graph, 0, ROWS, np.ones(len(ROWS)), np.arange(segments), np.zeros(segments)))
    scores = model.score(Steps(model, METHODS[method], 0.5, None).run(step, now=0), segments)
    return scores.detach(), list(torch.autograd.grad(scores.square().mean(), list(model.parameters())))


def distance(features: GraphFeatures, cut: Partition, model: CostModel) -> float:
    """Return the largest relative error of scores and gradients of a step on segments, against the whole graph.

    The step on the whole graph is in float64: its float32 sums would be less exact than those of segments.
    """
    ours = trained_on(model, GraphInputs(features, cut), "gst")
    exact = replace(features, node_feat=features.node_feat.astype(np.float64))
    theirs = trained_on(copy.deepcopy(model).double(), GraphInputs(exact, whole_graph(exact)), "full")
    largest = max(gradient.norm() for gradient in theirs[1])
    gradients = zip(ours[1], theirs[1], strict=True)
    errors = [(one - other).norm() / max(other.norm(), 0.1 * largest) for one, other in gradients]
    return float(max((ours[0] - theirs[0]).norm() / theirs[0].norm(), *errors))


def cut_graph(features: GraphFeatures, max_nodes: int, halo: int, algorithm: str = "topological") -> Partition:
    return partition_graph(features, PartitionConfig(algorithm=algorithm, max_nodes=max_nodes, halo=halo))


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(16, 60),
    max_nodes=st.integers(4, 30),
    algorithm=st.sampled_from(["topological", "metis"]),
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 3),
    beyond=st.integers(0, 1),
    attention=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_a_halo_of_as_many_hops_as_layers_equals_training_on_the_whole_graph(
    nodes: int,
    max_nodes: int,
    algorithm: str,
    seed: int,
    layers: int,
    beyond: int,
    attention: bool,
    dtype: torch.dtype,
    make_model: MakeModel,
    make_features: Callable[..., GraphFeatures],
) -> None:
    double = dtype == torch.float64
    features = make_features(nodes=nodes, seed=seed, dtype=np.float64 if double else np.float32)
    model = make_model(blocks=layers, block=[*BLOCK, *["configuration_attention"] * attention], pooling=["sum"]).to(
        dtype
    )
    partition = cut_graph(features, max_nodes, layers + beyond, algorithm)
    assert partition.segments > 1 or nodes <= max_nodes
    assert distance(features, partition, model) < (1e-9 if double else 1e-4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_halo_of_fewer_hops_differs_from_training_on_the_whole_graph(
    layers: int, make_model: MakeModel, make_features: Callable[..., GraphFeatures]
) -> None:
    """On a chain, where no other path joins the ends."""
    features = make_features(nodes=24)
    features = replace(features, edge_index=np.array([(u, u - 1) for u in range(1, 24)]))
    model = make_model(blocks=layers, pooling=["sum"])
    assert distance(features, cut_graph(features, 12, layers), model) < 1e-9
    assert distance(features, cut_graph(features, 12, layers - 1), model) > 1e-4


@pytest.mark.parametrize("method", ["gst", "gst_e"])
def test_parts_of_a_segment_have_the_same_gradients(
    method: str, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph, results = make_model(), make_inputs(segments=2), []
    model.recipe = replace(model.recipe, compress=False, deduplicate=False)
    step = Step(graph, 0, ROWS, np.ones(len(ROWS)), np.array([1]), np.zeros(2))
    for max_states, parts in ((None, 1), (1, len(ROWS))):
        planned_step = replace(StepPlanner.of(model, METHODS[method]), max_states=max_states)(step)
        assert len(planned_step.sampled) == parts
        assert len(planned_step.others) == (parts if method == "gst" else 0)
        assert planned_step.recomputed == (parts > 1)
        table = EmbeddingTable(model.embedding_width, 10**6, "float32") if method == "gst_e" else None
        total = Steps(model, METHODS[method], 1.0, table).run(planned_step, now=0)
        results.append((total, torch.autograd.grad(total.square().sum(), list(model.encoder.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_parts_without_gradient_are_bounded(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs(segments=2)
    model.recipe = replace(model.recipe, compress=False, deduplicate=False)
    whole, divided = (
        replace(StepPlanner.of(model, METHODS["gst_e"]), max_states=rows).without_gradient(graph, {1: ROWS})
        for rows in (None, 1)
    )
    assert (len(whole), len(divided)) == (1, len(ROWS))
    assert max(part.plan.states for part in divided) < whole[0].plan.states


def test_states_that_all_configurations_share_are_not_repeated_in_parts(
    make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    step = Step(make_inputs(segments=1), 0, np.full(4, 3), np.ones(4), np.array([0]), np.zeros(1))
    planned_step = replace(StepPlanner.of(make_model(), METHODS["full"]), max_states=1)(step)
    assert len(planned_step.sampled) == 1


@pytest.mark.parametrize("method", ["gst_one", "gst", "gst_e"])
def test_a_step_runs_where_the_model_is(method: str, model: CostModel, make_inputs: MakeInputs) -> None:
    """On the device `meta`, which refuses tensors of another one."""
    graph, meta = make_inputs(segments=SEGMENTS), torch.device("meta")
    table = EmbeddingTable(model.embedding_width, 10**6, "float32") if METHODS[method].others == "table" else None
    combine = Steps(model.to(meta), METHODS[method], 1.0, table)
    for now, sampled in enumerate([(0, 1, 2, 3), (2,)]):
        total = combine.run(step_on(combine, graph, sampled).to(meta), now)
        assert (total.shape, total.device.type) == ((len(ROWS), model.embedding_width), "meta")
        torch.autograd.backward(model.score(total, SEGMENTS).sum())
