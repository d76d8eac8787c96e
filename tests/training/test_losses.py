"""Losses against their formulas, written out in plain Python."""

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.config import LossTerm
from hlorank.training.losses import LOSSES, Loss, make_loss, pairwise_hinge

Values = list[float]
FUNCTIONS: dict[str, Loss] = {**LOSSES, "hinge": partial(pairwise_hinge, margin=0.3)}
every_loss = pytest.mark.parametrize("name", FUNCTIONS)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def over_ordered_pairs(penalty: Callable[[float], float], scores: Values, labels: Values) -> float:
    drawn = list(zip(scores, labels, strict=True))
    return fmean([penalty(score - other) for score, slow in drawn for other, fast in drawn if slow > fast] or [0])


def residuals(scores: Values, labels: Values) -> Values:
    logs = [math.log(label) for label in labels]
    return [(s - fmean(scores)) - (log - fmean(logs)) for s, log in zip(scores, logs, strict=True)]


def listmle(scores: Values, labels: Values) -> float:
    """Return the negative log likelihood of the order, fastest first, under a Plackett-Luce model."""
    weights = [math.exp(-scores[i]) for i in sorted(range(len(labels)), key=labels.__getitem__)]
    return -fmean(math.log(weight / sum(weights[i:])) for i, weight in enumerate(weights))


FORMULAS: dict[str, Callable[[Values, Values], float]] = {
    "hinge": partial(over_ordered_pairs, lambda difference: max(0.0, 0.3 - difference)),
    "ranknet": partial(over_ordered_pairs, lambda difference: math.log(1 + math.exp(-difference))),
    "listmle": listmle,
    "mse": lambda *drawn: fmean(r**2 for r in residuals(*drawn)),
    "mape": lambda *drawn: fmean(abs(math.exp(r) - 1) if r <= 1 else math.e * r - 1 for r in residuals(*drawn)),
}


@every_loss
@given(drawn=st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 5).map(float)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_every_loss_is_that_of_its_formula(name: str, drawn: list[tuple[float, float]]) -> None:
    scores, labels = map(list, zip(*drawn, strict=True))
    expected = FORMULAS[name](scores, labels)
    assert float(FUNCTIONS[name](vector(*scores), vector(*labels))) == pytest.approx(expected, abs=1e-12)
    assert expected >= 0


@every_loss
def test_gradients(name: str) -> None:
    scores = vector(0.1, 0.9, -0.4, 0.25, 1.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda own: FUNCTIONS[name](own, vector(3, 1, 2, 7, 1)), scores)
    single = FUNCTIONS[name](scores.detach().float(), vector(3, 1, 2, 7, 1))
    assert (single.dtype, single.shape) == (torch.float32, ())


@pytest.mark.parametrize(
    ("name", "scores", "expected"),
    [
        ("ranknet", (1e4, -1e4), 2e4),
        ("ranknet", (-1e4, 1e4), 0),
        ("listmle", (1e4, -1e4), 1e4),
        ("mape", (1e6, -1e6), math.e * 1e6 / 2),
    ],
)
def test_no_overflow(name: str, scores: tuple[float, float], expected: float) -> None:
    far = vector(*scores).requires_grad_()
    loss = FUNCTIONS[name](far, vector(1, 2))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-3)
    assert torch.autograd.grad(loss, far)[0].isfinite().all()


def test_losses_are_summed_by_weight() -> None:
    drawn = vector(0.3, -1, 2), vector(3, 2, 1)
    terms: dict[str, Any] = {"hinge": {"weight": 2, "margin": 0.3}, "mse": {"weight": 0.02}, "mape": {"weight": 0}}
    loss = make_loss({name: LossTerm.model_validate(term) for name, term in terms.items()})
    torch.testing.assert_close(loss(*drawn), 2 * FUNCTIONS["hinge"](*drawn) + 0.02 * FUNCTIONS["mse"](*drawn))
