"""Scores do not depend on how much is computed at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.models import scoring
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import (
    embed_configurations,
    mean_of_members,
    mean_over_orders,
    score_configurations,
    sum_segments,
)
from tests.models.dense_form import embed_rows

MakeInputs = Callable[..., GraphInputs]
MakeModel = Callable[..., CostModel]
BLOCK = ["layer_norm", "sage", "gelu", "dropout", "residual"]


@pytest.fixture
def make_model(make_model: MakeModel) -> MakeModel:
    """A function that makes a model with dropout and mean aggregation."""
    return partial(make_model, aggregation="mean", block=BLOCK, dropout=0.5)


@pytest.mark.parametrize(
    ("kind", "segments", "halo", "instance_norm"),
    [
        ("layout", 1, 0, False),
        ("layout", 3, 0, False),
        ("layout", 3, 1, False),
        ("layout", 3, 0, True),
        ("tile", 1, 0, False),
    ],
)
def test_the_bound_of_memory_changes_nothing(
    kind: str, segments: int, halo: int, instance_norm: bool, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, rows = make_model(kind, block=[*BLOCK, *["instance_norm"] * instance_norm]), np.arange(30)
    graph = make_inputs(segments=segments, halo=halo, kind=kind, distinct=30)
    expected = score_configurations(model, graph, rows, 2**40)
    assert expected.dtype == np.float64
    assert len(np.unique(expected)) == 30
    one_by_one = [score_configurations(model, graph, rows[i : i + 1], 1)[0] for i in rows]
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-12)
    for memory_bytes in (1, 20_000, 100_000):
        np.testing.assert_allclose(score_configurations(model, graph, rows, memory_bytes), expected, rtol=1e-12)
    some = np.array([29, 3, 3, 11])
    np.testing.assert_allclose(score_configurations(model, graph, some, 20_000), expected[some], rtol=1e-12)


@pytest.mark.parametrize("more", [[], ["instance_norm"]])
def test_no_more_configurations_at_once_than_fit(
    more: list[str], make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph, rows = make_model(block=[*BLOCK, *more]), make_inputs(distinct=30), np.arange(30)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, call: sizes.append(call[0].pool.configurations))
    score_configurations(model, graph, rows, 0)
    assert sizes == [1] * 30
    sizes.clear()
    score_configurations(model, graph, rows, 100 * 24 * 6 * 8)  # 100 times the bytes of one state of all nodes
    assert max(sizes) <= 100 / 2  # a layer needs at least its input and its output
    assert sum(sizes) == 30
    assert len(sizes) < 10


def test_no_more_embeddings_at_once_than_fit(
    make_model: MakeModel, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, rows = make_model(), make_inputs(segments=3, distinct=30), np.arange(30)
    expected = score_configurations(model, graph, rows, 2**30)
    sizes: list[int] = []

    def counted(*arguments: Any) -> Tensor:
        sizes.append(len(arguments[2]))
        return sum_segments(*arguments)

    monkeypatch.setattr(scoring, "sum_segments", counted)
    one = 4 * 3 * 12 * 8  # three embeddings of a configuration exist at once, in a quarter of the memory
    np.testing.assert_allclose(score_configurations(model, graph, rows, 7 * one + 1), expected, rtol=1e-12)
    assert sizes == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("segments", [1, 3])
def test_attention_ranks_whole_groups_together(
    segments: int, make_model: MakeModel, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 4)
    model = make_model(block=[*BLOCK, "configuration_attention"]).eval()
    graph, rows = make_inputs(segments=segments, distinct=30), np.array([3, 1, 4, 1, 5, 9, 2, 6, 8, 29])
    scores = score_configurations(model, graph, rows, 2**30)
    for group in range(3):
        some = rows[group::3]
        total = torch.stack([embed_rows(model, graph, j, some) for j in range(segments)]).sum(dim=0)
        np.testing.assert_allclose(scores[group::3], model.score(total, segments).detach().numpy(), rtol=1e-12)
    # The bound of memory changes no score.
    np.testing.assert_array_equal(score_configurations(model, graph, rows, 1), scores)
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 128)
    assert not np.allclose(score_configurations(model, graph, rows, 2**30), scores, rtol=1e-6)


@pytest.mark.parametrize("block", [["layer_norm", "sage", "residual"], ["sage", "instance_norm"]])
def test_without_attention_scores_do_not_depend_on_what_is_ranked_together(
    block: list[str], make_model: MakeModel, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 4)
    model, graph = make_model(block=block, permutations=5), make_inputs(segments=3, distinct=30)
    every = score_configurations(model, graph, np.arange(30), 2**30)
    for count in (1, 3, 30):
        chosen = np.random.default_rng(0).permutation(30)[:count]
        np.testing.assert_allclose(score_configurations(model, graph, chosen, 2**30), every[chosen], rtol=1e-12)
    np.testing.assert_array_equal(mean_over_orders(score_configurations, model, graph, 2**30), every)


def test_averaging_over_orders_makes_scores_depend_less_on_the_order(
    make_model: MakeModel, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The averages over two disjoint halves of many orders differ less than the scores of two single ones."""
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 5)
    model = make_model(block=["sage", "configuration_attention"], permutations=1)
    graph, rows = make_inputs(distinct=30), np.arange(30)

    def scored(order: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        scores = np.empty(30)
        scores[order] = score_configurations(model, graph, order, 2**30)
        return scores

    orders = [rows, *(np.random.default_rng(number).permutation(rows) for number in range(1, 32))]
    single = np.stack([scored(order) for order in orders])
    np.testing.assert_array_equal(mean_over_orders(score_configurations, model, graph, 2**30), single[0])
    for count in (2, 4):
        model.config = model.config.model_copy(update={"permutations": count})
        found = mean_over_orders(score_configurations, model, graph, 2**30)
        np.testing.assert_allclose(found, single[:count].mean(axis=0), rtol=1e-12)
    spread = single.std(axis=0).mean()
    assert spread > 1e-6
    averaged = single.reshape(4, 8, 30).mean(axis=1)
    assert averaged.std(axis=0).mean() < 0.6 * spread
    embedding = mean_over_orders(embed_configurations, model, graph, 2**30)
    assert embedding.shape == (30, model.embedding_width)


def test_members_have_equal_weights_unless_some_are_given() -> None:
    first, second = np.array([0.0, 1.0, 2.0]), np.array([300.0, 0.0, 0.0])
    step = np.sqrt(1.5)  # between (-1, 0, 1) scaled to a standard deviation of 1
    expected = (np.array([-step, 0, step]) + np.array([2, -1, -1]) / np.sqrt(2)) / 2
    np.testing.assert_allclose(mean_of_members([first, second]), expected)
    np.testing.assert_allclose(mean_of_members([5 * first - 7, 1e-3 * second]), expected)  # on any scale
    np.testing.assert_array_equal(mean_of_members([first]), first)
    weighted = (3 * np.array([-step, 0, step]) + np.array([2, -1, -1]) / np.sqrt(2)) / 4
    np.testing.assert_allclose(mean_of_members([first, second], [3, 1]), weighted)


def test_a_member_with_equal_scores_counts_as_0() -> None:
    scores = np.array([0.5, 3.0, 1.0])
    for constant in (np.full(3, 0.1), np.array([12.0, 12.000001, 12.0]), np.zeros(3)):
        np.testing.assert_allclose(2 * mean_of_members([scores, constant]), (scores - 1.5) / scores.std())
    assert mean_of_members([np.array([3.0]), np.array([-1.0])]).tolist() == [0.0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_mode_is_restored_and_dropout_is_off(
    training: bool, fails: bool, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph, rows = make_model().train(training), make_inputs(), np.arange(12)
    first, second = (score_configurations(model, graph, rows, 2**30) for _ in range(2))
    assert (first == second).all()
    assert all(parameter.grad is None for parameter in model.parameters())

    def fail(*_: object) -> None:
        raise MemoryError

    if fails:
        model.register_forward_pre_hook(fail)
        with pytest.raises(MemoryError):
            score_configurations(model, graph, rows, 2**30)
    assert all(module.training == training for module in model.modules())
