"""Scores do not depend on how much is computed at once; means over orders and members."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from hlorank.models import scoring
from hlorank.models.compression.declarations import Recipe
from hlorank.models.compression.plan import Array, Plan
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, GraphLoader
from hlorank.models.scoring import (
    PlanCache,
    load_trained,
    mean_of_members,
    mean_over_orders,
    score_configurations,
    sum_segments,
)
from hlorank.models.serialization import ModelSpec, input_sizes, save_model
from tests import graphs as random_graphs
from tests.graphs import make_inputs
from tests.models.dense_form import scores_of

BLOCK = ["layer_norm", "sage", "gelu", "dropout", "residual"]
ROWS, MEMORY, NO_PLANS = np.arange(30), 2**30, PlanCache(0)


make_model = partial(random_graphs.make_model, aggregation="mean", block=BLOCK, dropout=0.5)


@pytest.mark.parametrize(
    ("kind", "segments", "more"),
    [("layout", 1, []), ("layout", 3, []), ("layout", 3, ["instance_norm"]), ("tile", 1, [])],
)
def test_neither_memory_nor_grouping_changes_a_score(kind: str, segments: int, more: list[str]) -> None:
    model = make_model(kind, block=[*BLOCK, *more], permutations=5)
    graph = make_inputs(segments=segments, kind=kind, distinct=30)
    expected = score_configurations(model, graph, ROWS, 2**40)
    assert expected.dtype == np.float64
    assert len(np.unique(expected)) == 30
    np.testing.assert_allclose(expected, scores_of(model.eval(), graph, ROWS).detach(), rtol=1e-12)
    for memory_bytes in (1, 20_000, 100_000):
        np.testing.assert_allclose(score_configurations(model, graph, ROWS, memory_bytes), expected, rtol=1e-12)
    for some in (np.array([29, 3, 3, 11]), np.array([7])):
        np.testing.assert_allclose(score_configurations(model, graph, some, 20_000), expected[some], rtol=1e-12)
    np.testing.assert_array_equal(mean_over_orders(model, graph, 2**40, NO_PLANS), expected)


@pytest.mark.parametrize("more", [[], ["instance_norm"]])
def test_no_more_configurations_at_once_than_fit(more: list[str]) -> None:
    model, graph = make_model(block=[*BLOCK, *more]), make_inputs(distinct=30)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, call: sizes.append(call[0].pool.configurations))
    score_configurations(model, graph, ROWS, 0)
    assert sizes == [1] * 30
    sizes.clear()
    score_configurations(model, graph, ROWS, 100 * 24 * 6 * 8)  # 100 times the bytes of one state of all nodes
    assert max(sizes) <= 100 / 2  # a layer needs at least its input and its output
    assert sum(sizes) == 30
    assert len(sizes) < 10


def test_no_more_embeddings_at_once_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = make_model(), make_inputs(segments=3, distinct=30)
    expected = score_configurations(model, graph, ROWS, MEMORY)
    sizes: list[int] = []

    def counted(*arguments: Any) -> Tensor:
        sizes.append(len(arguments[2]))
        return sum_segments(*arguments)

    monkeypatch.setattr(scoring, "sum_segments", counted)
    one = 4 * 3 * 12 * 8  # three embeddings of a configuration exist at once, in a quarter of the memory
    np.testing.assert_allclose(score_configurations(model, graph, ROWS, 7 * one + 1), expected, rtol=1e-12)
    assert sizes == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("segments", [1, 3])
def test_attention_ranks_whole_groups_together(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 4)
    model = make_model(block=[*BLOCK, "configuration_attention"]).eval()
    graph, rows = make_inputs(segments=segments, distinct=30), np.array([3, 1, 4, 1, 5, 9, 2, 6, 8, 29])
    scores = score_configurations(model, graph, rows, MEMORY)
    for group in range(3):
        together = scores_of(model, graph, rows[group::3]).detach()
        np.testing.assert_allclose(scores[group::3], together, rtol=1e-12)
        total = sum_segments(model, graph, rows, MEMORY)[group::3]  # which head finetuning calls
        np.testing.assert_array_equal(total, sum_segments(model, graph, rows[group::3], MEMORY))
    # The bound of memory changes no score.
    np.testing.assert_array_equal(score_configurations(model, graph, rows, 1), scores)
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 128)
    assert not np.allclose(score_configurations(model, graph, rows, MEMORY), scores, rtol=1e-6)


def test_scores_are_averaged_over_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 5)
    model = make_model(block=["sage", "configuration_attention"])
    graph, single = make_inputs(distinct=30), np.empty((4, 30))
    for number, scores in enumerate(single):
        order = np.random.default_rng(number).permutation(ROWS) if number else ROWS
        scores[order] = score_configurations(model, graph, order, MEMORY)
    assert single.std(axis=0).mean() > 1e-6
    for count in (1, 2, 4):
        model.config = model.config.model_copy(update={"permutations": count})
        found = mean_over_orders(model, graph, MEMORY, NO_PLANS)
        np.testing.assert_allclose(found, single[:count].mean(axis=0), rtol=1e-12)
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 30)  # all in one group, whose order is irrelevant
    calls = list[int]()
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    mean_over_orders(model, graph, MEMORY, NO_PLANS)
    assert len(calls) == 1


def test_members_are_averaged_over_orders_and_share_their_plans(
    spec: ModelSpec, graphs: GraphLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Groups smaller than a graph, so that the order of configurations determines which are ranked together.
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 30)
    changes = {"block": ["sage", "configuration_attention", "gelu", "residual"], "permutations": 3}
    config = spec.model.model_copy(update=changes)
    members = [CostModel(config, input_sizes(spec.features), spec.aggregation).eval() for _ in range(3)]
    save_model(tmp_path, members, spec.model_copy(update={"members": 3, "model": config}))
    (name, *_) = graphs.store.graphs("valid")
    features, partition = graphs.store.open("valid", name), graphs.open_partition("valid", name)
    graph = graphs.open("valid", name)
    scores = [mean_over_orders(member, graph, MEMORY, NO_PLANS) for member in members]
    planned, plan = list[int](), GraphInputs.plan

    def recorded(self: GraphInputs, rows: Mapping[int, NDArray[np.int64]], recipe: Recipe) -> Plan[Array]:
        planned.extend(rows)
        return plan(self, rows, recipe)

    monkeypatch.setattr(GraphInputs, "plan", recorded)
    np.testing.assert_array_equal(load_trained(tmp_path, MEMORY).score(features, partition), mean_of_members(scores))
    assert len(planned) == 3 * -(-features.distinct // 30) * len(graph.segments)


def test_members_have_equal_weights_unless_some_are_given() -> None:
    first, second = np.array([0.0, 1.0, 2.0]), np.array([300.0, 0.0, 0.0])
    step = np.sqrt(1.5)  # between (-1, 0, 1) scaled to a standard deviation of 1
    scaled = np.array([-step, 0, step]), np.array([2, -1, -1]) / np.sqrt(2)
    np.testing.assert_allclose(mean_of_members([first, second]), np.mean(scaled, axis=0))
    np.testing.assert_allclose(mean_of_members([5 * first - 7, 1e-3 * second]), np.mean(scaled, axis=0))  # any scale
    np.testing.assert_array_equal(mean_of_members([first]), first)
    np.testing.assert_allclose(mean_of_members([first, second], [3, 1]), (3 * scaled[0] + scaled[1]) / 4)
    for constant in (np.full(3, 0.1), np.array([12.0, 12.000001, 12.0]), np.zeros(3)):  # counts as 0
        np.testing.assert_allclose(2 * mean_of_members([first, constant]), scaled[0])
    assert mean_of_members([np.array([3.0]), np.array([-1.0])]).tolist() == [0.0]


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_and_dropout_is_off(training: bool) -> None:
    model, graph = make_model().train(training), make_inputs()
    first, second = (score_configurations(model, graph, np.arange(12), MEMORY) for _ in range(2))
    assert (first == second).all()

    def fail(*_: object) -> None:
        assert not model.training
        raise MemoryError

    model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        score_configurations(model, graph, np.arange(12), MEMORY)
    assert all(module.training == training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
