"""Losses against values worked out by hand and by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.config import ConfigError, LossConfig
from hlorank.training.losses import Loss, listmle, log_mse, make_loss, pairwise_hinge


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


scored = st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 5)), min_size=1, max_size=8)


@given(scored, st.floats(0, 2))
@settings(deadline=None, max_examples=60)
def test_hinge_is_the_mean_over_ordered_pairs(drawn: list[tuple[float, int]], margin: float) -> None:
    penalties = [
        max(0.0, margin - (score - other)) for score, label in drawn for other, faster in drawn if label > faster
    ]
    loss = pairwise_hinge(vector(*(score for score, _ in drawn)), vector(*(float(label) for _, label in drawn)), margin)
    assert float(loss) == pytest.approx(sum(penalties) / max(1, len(penalties)), abs=1e-12)


def test_hinge_by_hand() -> None:
    labels = vector(10, 30, 20)
    assert float(pairwise_hinge(vector(0, 2, 1), labels, 0.5)) == 0.0
    # 30 over 10: 0.5 - 1; 30 over 20: 0.5 - 0.25; 20 over 10: 0.5 - 0.75.
    assert float(pairwise_hinge(vector(0, 1, 0.75), labels, 0.5)) == pytest.approx(0.25 / 3)
    scores = vector(0, 1, 0.75).requires_grad_()
    (gradient,) = torch.autograd.grad(pairwise_hinge(scores, labels, 0.5), scores)
    torch.testing.assert_close(gradient, vector(0, -1 / 3, 1 / 3))
    assert float(pairwise_hinge(scores, vector(5, 5, 5), 0.5).detach()) == 0.0


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5))
@settings(deadline=None, max_examples=20)
def test_listmle_is_a_distribution_over_orders(scores: list[float]) -> None:
    orders = list(permutations(range(1, len(scores) + 1)))
    logs = [-len(scores) * float(listmle(vector(*scores), vector(*map(float, order)))) for order in orders]
    assert sum(math.exp(log) for log in logs) == pytest.approx(1.0)


def test_listmle_by_hand() -> None:
    # The fastest is the second with score 0, of logits (-1, 0, -2); then the first of (-1, -2).
    expected = -math.log(1 / (math.exp(-1) + 1 + math.exp(-2))) - math.log(math.exp(-1) / (math.exp(-1) + math.exp(-2)))
    assert float(listmle(vector(1, 0, 2), vector(20, 10, 30))) == pytest.approx(expected / 3)
    right, wrong = (float(listmle(vector(*scores), vector(1, 2, 3))) for scores in ((0, 5, 9), (9, 5, 0)))
    assert right < 0.1 < wrong
    assert float(listmle(vector(1e4, -1e4), vector(1, 2))) == pytest.approx(1e4)  # no overflow


def test_log_mse_by_hand() -> None:
    # log 1, log e^2 centred: -1, 1; scores centred: -2, 2.
    assert float(log_mse(vector(0, 4), vector(1, math.exp(2)))) == pytest.approx(1.0)
    assert log_mse(torch.tensor([0.0, 4.0]), vector(1, 2)).dtype == torch.float32


@given(scored, st.floats(-5, 5), st.floats(0.1, 100))
@settings(deadline=None, max_examples=30)
def test_log_mse_ignores_shifts_of_scores_and_units_of_runtime(
    drawn: list[tuple[float, int]], shift: float, unit: float
) -> None:
    scores, labels = vector(*(score for score, _ in drawn)), vector(*(float(label) for _, label in drawn))
    loss = log_mse(scores, labels)
    torch.testing.assert_close(log_mse(scores + shift, labels), loss, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(log_mse(scores, labels * unit), loss, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(log_mse(labels.log() + shift, labels), vector(0)[0], rtol=0, atol=1e-12)


LOSSES: list[Loss] = [lambda scores, labels: pairwise_hinge(scores, labels, 0.3), listmle, log_mse]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_depends_on_the_order_of_configurations(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(9, dtype=torch.float64, generator=generator), torch.arange(9).double() + 1
    order = torch.randperm(9, generator=generator)
    torch.testing.assert_close(loss(scores[order], labels[order]), loss(scores, labels))


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients(loss: Loss) -> None:
    labels = vector(3, 1, 2, 2)
    scores = vector(0.1, 0.9, -0.4, 0.25).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: loss(scores, labels), (scores,))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hinge", lambda s, t: pairwise_hinge(s, t, 0.7)), ("listmle", listmle), ("mse", log_mse)],
)
def test_losses_by_name(name: str, expected: Callable[[Tensor, Tensor], Tensor]) -> None:
    scores, labels = vector(0.3, -1, 2), vector(3, 2, 1)
    assert make_loss(LossConfig(name=name, margin=0.7))(scores, labels) == expected(scores, labels)


def test_unknown_losses_are_named() -> None:
    with pytest.raises(ConfigError, match=r"loss.name: expected one of hinge, listmle, mse, found 'l2'"):
        make_loss(LossConfig(name="l2", margin=0.0))
