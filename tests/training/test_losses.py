"""Losses against values worked out by hand and by brute force."""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.config import ConfigError, LossTerm
from hlorank.training.losses import (
    Loss,
    listmle,
    log_mape,
    log_mse,
    make_loss,
    pairwise_hinge,
    pairwise_l1,
    ranknet,
)


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


def test_ranknet_by_hand() -> None:
    # 20 over 10: a difference of 1; 30 over 10: -1; 30 over 20: -2.
    expected = [math.log(1 + math.exp(-1)), math.log(1 + math.e), math.log(1 + math.exp(2))]
    assert float(ranknet(vector(1, 2, 0), vector(10, 20, 30))) == pytest.approx(sum(expected) / 3)
    # Without an order in the scores either may be slower.
    assert float(ranknet(vector(5, 5), vector(10, 20))) == pytest.approx(math.log(2))
    assert float(ranknet(vector(1e4, -1e4), vector(1, 2))) == pytest.approx(2e4)  # no overflow
    assert float(ranknet(vector(-1e4, 1e4), vector(1, 2))) == 0.0


@pytest.mark.parametrize("loss", [partial(pairwise_hinge, margin=0.5), ranknet])
def test_ties_form_no_ordered_pairs(loss: Loss) -> None:
    assert float(loss(vector(1, -2, 3), vector(5, 5, 5))) == 0.0
    assert float(loss(vector(7), vector(5))) == 0.0
    # Of three pairs one ties, and its scores play no role in the order of the others.
    expected = (loss(vector(1, 3), vector(5, 9)) + loss(vector(-2, 3), vector(5, 9))) / 2
    torch.testing.assert_close(loss(vector(1, -2, 3), vector(5, 5, 9)), expected)


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


@given(scored)
@settings(deadline=None, max_examples=40)
def test_pairwise_l1_is_the_mean_over_all_pairs(drawn: list[tuple[float, int]]) -> None:
    errors = [
        abs((score - other) - (math.log(label) - math.log(second)))
        for i, (score, label) in enumerate(drawn)
        for other, second in drawn[:i]
    ]
    loss = pairwise_l1(vector(*(score for score, _ in drawn)), vector(*(float(label) for _, label in drawn)))
    assert float(loss) == pytest.approx(sum(errors) / max(1, len(errors)), abs=1e-12)


def test_log_mape_by_hand() -> None:
    # Runtimes 1 and e^2 of the geometric mean e: predicted 1.5 times and a 1.5th of what they are.
    half = math.log(1.5)
    expected = (0.5 + 1 / 3) / 2
    assert float(log_mape(vector(half, 2 - half), vector(1, math.exp(2)))) == pytest.approx(expected)
    # Above e times too long, along the tangent of the exponential at 1.
    assert float(log_mape(vector(3, -3), vector(4, 4))) == pytest.approx((math.e * 3 - 1 + 1 - math.exp(-3)) / 2)
    far = torch.tensor([1e6, -1e6], requires_grad=True)
    loss = log_mape(far, vector(1, 2))
    assert float(loss.detach()) == pytest.approx(math.e * 1e6 / 2, rel=1e-3)
    (gradient,) = torch.autograd.grad(loss, far)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("loss", [pairwise_l1, log_mse, log_mape])
@given(drawn=scored, shift=st.floats(-5, 5), unit=st.floats(0.1, 100))
@settings(deadline=None, max_examples=30)
def test_log_losses_ignore_shifts_of_scores_and_units_of_runtime(
    loss: Loss, drawn: list[tuple[float, int]], shift: float, unit: float
) -> None:
    scores, labels = vector(*(score for score, _ in drawn)), vector(*(float(label) for _, label in drawn))
    plain = loss(scores, labels)
    torch.testing.assert_close(loss(scores + shift, labels), plain, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(loss(scores, labels * unit), plain, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(loss(labels.log() + shift, labels), vector(0)[0], rtol=0, atol=1e-12)
    assert loss(scores.float(), labels).dtype == torch.float32


LOSSES: dict[str, Loss] = {
    "hinge": partial(pairwise_hinge, margin=0.3),
    "ranknet": ranknet,
    "listmle": listmle,
    "pairwise_l1": pairwise_l1,
    "mse": log_mse,
    "mape": log_mape,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def terms(**weights: float) -> dict[str, LossTerm]:
    """The section `loss` with these weights."""
    return {name: LossTerm(weight=weight, **MARGIN if name == "hinge" else {}) for name, weight in weights.items()}


MARGIN: Any = {"margin": 0.3}


@every_loss
def test_no_loss_depends_on_the_order_of_configurations(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(9, dtype=torch.float64, generator=generator), torch.arange(9).double() + 1
    order = torch.randperm(9, generator=generator)
    torch.testing.assert_close(loss(scores[order], labels[order]), loss(scores, labels))


@every_loss
@given(drawn=scored)
@settings(deadline=None, max_examples=20)
def test_losses_are_finite_and_never_negative(loss: Loss, drawn: list[tuple[float, int]]) -> None:
    scores, labels = vector(*(score for score, _ in drawn)), vector(*(float(label) for _, label in drawn))
    found = float(loss(scores, labels))
    assert math.isfinite(found)
    assert found >= 0


@every_loss
def test_a_step_against_the_gradient_lowers_the_loss(loss: Loss) -> None:
    labels, scores = vector(3, 1, 2, 7), vector(0.1, 0.9, -0.4, 0.25).requires_grad_()
    before = loss(scores, labels)
    (gradient,) = torch.autograd.grad(before, scores)
    assert float(loss(scores.detach() - 1e-3 * gradient, labels)) < float(before.detach())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_name(name: str) -> None:
    scores, labels = vector(0.3, -1, 2), vector(3, 2, 1)
    assert make_loss(terms(**{name: 1.0}))(scores, labels) == LOSSES[name](scores, labels)


def test_losses_are_summed_by_weight() -> None:
    scores, labels = vector(0.3, -1, 2), vector(3, 2, 1)
    loss = make_loss(terms(listmle=2.0, mse=0.02))
    torch.testing.assert_close(loss(scores, labels), 2 * listmle(scores, labels) + 0.02 * log_mse(scores, labels))


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"mse": LossTerm(weight=0)}, "loss"),
        ({"hinge": LossTerm(weight=1)}, r"loss\.hinge\.margin"),
        ({"mse": LossTerm.model_validate({"weight": 1, "margin": 1})}, r"loss\.mse\.margin"),
        ({"msle": LossTerm(weight=1)}, "loss=msle"),
    ],
)
def test_wrong_terms_are_reported(section: dict[str, LossTerm], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: "):
        make_loss(section)
