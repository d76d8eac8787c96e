"""Training steps: draws depend on seed, epoch and index only; plans, their memory and its bound; ranked graphs."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.stages.train import train
from hlorank.training.fit import build
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import Ranking, StepData
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner, bytes_per_state, measure_step
from tests.graphs import make_inputs, make_model
from tests.training.training_helpers import Settings, open_data, planned


def steps(config: Config, epoch: int = 0) -> list[Step]:
    data = open_data(config)
    return [data.step(epoch, index) for index in range(data.graphs_per_epoch)]


def plain(step: Step) -> tuple[str, list[int], list[float], list[int]]:
    return step.graph.features.name, step.configurations.tolist(), step.labels.tolist(), step.with_gradient.tolist()


def test_steps_depend_on_seed_epoch_and_index_only(settings: Settings) -> None:
    config = settings()
    first = [plain(step) for step in steps(config, epoch=5)]
    np.random.default_rng().random(3)
    assert [plain(step) for step in steps(config, epoch=5)] == first
    data = open_data(config)
    assert [plain(data.step(5, i)) for i in (3, 1)] == [first[3], first[1]]  # whatever was drawn before
    assert [plain(step) for step in steps(config, epoch=6)] != first
    other = config.model_copy(update={"seed": 1})
    assert [plain(step) for step in steps(other, epoch=5)] != first


@pytest.mark.parametrize(
    ("values", "segments", "configurations"),
    [
        ({"segments__sampled": 2, "trainer__steps_per_epoch": 9}, 2, 8),
        ({"segments__sampled": 99, "trainer__configs_per_step": 999}, 99, 999),  # no more than the graph has
        ({"collection": "tile:synthetic", "method": "full", "trainer__configs_per_step": 999}, 1, 999),
    ],
)
def test_a_step_has_distinct_configurations_and_sampled_segments(
    values: dict[str, Any], segments: int, configurations: int, settings: Settings
) -> None:
    drawn = steps(settings(**values))
    for step in drawn:
        targets = Counter(zip(*step.graph.features.targets(), strict=True))  # some tiles are the same
        found = Counter(zip(step.configurations, step.labels, strict=True))
        assert found <= targets
        assert found.total() == min(targets.total(), configurations)
        sampled, count = step.with_gradient.tolist(), len(step.graph.segments)
        assert sampled == sorted({*sampled} & {*range(count)})
        assert len(sampled) == min(segments, count)
    assert segments != 2 or len({tuple(step.with_gradient) for step in drawn}) > 1


@pytest.mark.parametrize(("steps_per_epoch", "graphs_per_step"), [(3, 1), (4, 1), (2, 3)])
def test_every_graph_once_a_round(steps_per_epoch: int, graphs_per_step: int, settings: Settings) -> None:
    config = settings(trainer__steps_per_epoch=steps_per_epoch, trainer__graphs_per_step=graphs_per_step)
    graphs = open_setup(config).graphs
    names = [step.graph.features.name for epoch in range(6) for step in steps(config, epoch)]
    assert len(names) == 6 * steps_per_epoch * graphs_per_step
    rounds = [tuple(names[i : i + 3]) for i in range(0, len(names), 3)]
    assert {frozenset(names) for names in rounds} == {frozenset(graphs.store.graphs("train"))}
    assert len(set(rounds)) > 1  # each in an order of its own


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # an earlier test of this process may have started JAX
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on machines of one core
@pytest.mark.parametrize("changes", [{}, {"method": "gst", "model__drop_edge": 0.5}])
def test_workers_plan_equal_steps(changes: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    planned = []
    for workers in (0, 1, 2):
        config = settings(trainer__workers=workers, **changes)
        data: Any = open_data(config)
        epochs = []
        for epoch in (0, 1):
            data.trainer = SimpleNamespace(current_epoch=epoch)
            epochs += list(data.train_dataloader())
        planned.append(epochs)
    assert len(planned[0]) == 2 * config.trainer.steps_per_epoch
    for steps in planned[1:]:
        for one, other in zip(planned[0], steps, strict=True):
            for ours, theirs in zip(one.others + one.sampled, other.others + other.sampled, strict=True):
                assert ours.segments == theirs.segments
                plans = tree_leaves(ours.plan.unpack()), tree_leaves(theirs.plan.unpack())
                torch.testing.assert_close(*plans, rtol=0, atol=0)
            np.testing.assert_array_equal(one.local, other.local)
            assert torch.equal(one.labels, other.labels)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_an_error_of_a_worker_is_raised(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: StepData, epoch: int, index: int) -> Step:
        raise DataError("codes", "3 columns", 4, file=tmp_path / "codes.npy")

    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(StepData, "step", step)
    with pytest.raises(DataError, match=r"codes\.npy.*codes.*3 columns.*4"):
        train(settings(trainer__workers=1), tmp_path / "model")


def test_every_validation_ranks_the_same_configurations(settings: Settings) -> None:
    """Of every seed, member and method, or taus could not be compared: a training could win by its draw."""

    def ranked(member: int = 0, **values: Any) -> list[Ranking]:
        setup = open_setup(settings(**{"trainer__validation_configs": 10, **values}))
        return list(build(setup, Member(seed=member), ALONE)[1].val_dataloader())

    first = ranked()
    for ranking in first:
        rows, labels = ranking.graph.features.targets()
        assert len(ranking.configurations) == 10
        assert ranking.configurations.tolist() == sorted({*ranking.configurations.tolist()})
        np.testing.assert_array_equal(ranking.labels, labels[np.searchsorted(rows, ranking.configurations)])
    drawn = [ranking.configurations.tolist() for ranking in first]
    for others in (ranked(), ranked(1), ranked(method="full"), ranked(seed=7)):
        assert [ranking.configurations.tolist() for ranking in others] == drawn
    assert drawn[0] != drawn[1], "each graph has a draw of its own"
    (everything, _) = ranked(trainer__validation_configs=10**6)
    assert everything.configurations.tolist() == list(range(everything.graph.features.distinct))


def test_graphs_without_two_runtimes_are_not_validated(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Kendall tau is NaN, which would end the training."""
    plain_open = FeatureStore.open

    def constant(self: FeatureStore, split: Any, name: str) -> GraphFeatures:
        features = plain_open(self, split, name)
        return replace(features, runtime=np.full_like(features.runtime, 7)) if name.endswith("valid_000") else features

    monkeypatch.setattr(FeatureStore, "open", constant)
    data = open_data(settings())
    assert data.valid == ["synthetic_valid_001"]
    assert len(list(data.val_dataloader())) == 1


@pytest.mark.parametrize("bound", [2, 20, 10**6, None])
def test_a_working_set_fills_at_most_its_table_entries(bound: int | None, settings: Settings) -> None:
    config = settings(segments__configs_per_graph="null" if bound is None else bound)
    data = open_data(config)
    entries = data.table_entries()
    assert list(entries) == data.train
    for number, name in enumerate(data.train):
        graph = data.train_graph(number)
        local = graph.partition.local_codes
        found = [
            sum(len(np.unique(local[data.working_set(number, epoch)[0], j])) for j in range(local.shape[1]))
            for epoch in (0, 10, 20)
        ]
        assert max(found) <= entries[name] <= local.shape[1] * (bound or graph.features.distinct)
        if bound in (10**6, None):
            assert set(found) == {entries[name]}
    assert open_data(settings(method="full")).table_entries() == {}


@pytest.mark.parametrize(("collection", "each"), [("layout:synthetic:random", 16), ("tile:synthetic", 9)])
def test_few_files_are_open(collection: str, each: int, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.training.step_data._OPEN_FILES", each)
    config = settings(trainer__workers=0, collection=collection)
    data: Any = open_data(config)
    data.trainer = SimpleNamespace(current_epoch=0)

    def files() -> int:
        roots = config.paths.features, config.paths.segments
        links = (Path("/proc/self/fd") / link.name for link in Path("/proc/self/fd").iterdir())
        return sum(str(link.readlink()).startswith(roots) for link in links if link.is_symlink())

    before = files()
    numbers = {files() - before for _ in data.train_dataloader()}
    assert each in numbers
    assert numbers <= {each, 2 * each}  # the graph of the step, and the graph before it


ROWS = np.array([4, 1, 9, 7, 0])


def whole(model: CostModel, graph: GraphInputs) -> PlannedStep:
    return planned(model, "full", Step(graph, 0, ROWS, np.ones(len(ROWS)), np.array([0]), np.zeros(1)))


def test_a_layer_adds_the_states_that_it_keeps() -> None:
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
    bytes_of_states = graph.segments[0].nodes * len(ROWS) * model.config.width * model.dtype.itemsize
    assert 1 <= (kept[1] - kept[0]) / bytes_of_states <= 2  # the backward pass needs memory too


def test_a_bound_divides_segments_and_refuses_less_than_a_configuration(settings: Callable[..., Config]) -> None:
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


def test_segments_and_their_parts_share_the_bound() -> None:
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
