"""Steps depend on seed, epoch and index only; graphs that cannot be trained on or ranked are left out."""

from __future__ import annotations

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

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.stages.train import train
from hlorank.training.fit import build
from hlorank.training.process_group import ALONE
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import Ranking, StepData
from hlorank.training.step_plans import Step
from tests.training.training_helpers import open_data

Settings = Callable[..., Config]


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
def test_any_number_of_workers_plans_the_same_steps(
    changes: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_an_error_of_a_worker_is_that_of_the_training(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    config = settings()
    data = open_data(config)
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


def test_the_files_of_few_graphs_are_open_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.training.step_data._OPEN_GRAPHS", 1)
    config = settings(trainer__workers=0)
    data: Any = open_data(config)
    data.trainer = SimpleNamespace(current_epoch=0)

    def files() -> int:
        root = str(data._graphs.store.root)
        links = (Path("/proc/self/fd") / link.name for link in Path("/proc/self/fd").iterdir())
        return sum(str(link.readlink()).startswith(root) for link in links if link.is_symlink())

    before = files()
    numbers = [files() - before for _ in data.train_dataloader()]
    assert 0 < max(numbers) <= 2 * min(numbers)  # the graph of the step, and the one before it
