from __future__ import annotations

import math

import numpy as np
import pytest

from hlorank.evaluation.errors import (
    ANALYSED,
    WRONG,
    mean_effects,
    noise_width,
    partial_correlations,
    subsample,
    wrong_pairs,
)
from hlorank.metrics import kendall_tau


def test_the_noise_width_is_that_of_the_measurements() -> None:
    rng = np.random.default_rng(0)
    for spread_of_runtimes in (rng.normal(0, 0.1, 200), rng.choice([0.0, 2.0], 200) + rng.normal(0, 0.02, 200)):
        halves = spread_of_runtimes + rng.normal(0, 0.01, (2, 200))
        label = np.exp(halves.mean(axis=0))
        noise_of_a_ratio = 0.01 / math.sqrt(2) * math.sqrt(2)  # of the mean of two halves, of two configurations
        assert noise_width(label, kendall_tau(*halves)) == pytest.approx(noise_of_a_ratio, rel=0.15)


@pytest.mark.parametrize("tau_half", [1.0, 0.999, 0.0, -1.0])
def test_the_noise_width_is_finite_for_every_agreement(tau_half: float) -> None:
    label = np.array([100.0, 100.0, 101.0, 150.0])
    assert 0 < noise_width(label, tau_half) < math.inf
    assert noise_width(label, tau_half) >= noise_width(label, 1.0) > 0.001, "one that no halves contradict"


def test_wrong_pairs_are_counted_by_noise_widths() -> None:
    label = np.exp([0.0, 0.05, 0.3, 0.6])  # distances 0.5, 2.5, 3, 3, 5.5 and 6 widths of 0.1
    shares = wrong_pairs(np.array([1.0, 0.0, 2.0, 2.0]), label, 0.1)
    assert shares == pytest.approx(
        {"wrong": 1.5 / 6, "wrong_below_1": 1 / 6, "wrong_1_to_2": 0, "wrong_2_to_4": 0.5 / 6, "wrong_above_4": 0}
    )
    assert wrong_pairs(np.array([1.0, 0.0, 2.0, 2.0]), label, None) == {"wrong": 1.5 / 6}


def test_without_ties_the_share_of_wrong_pairs_follows_from_kendall_tau() -> None:
    score, label = np.random.default_rng(0).uniform(1, 2, (2, 60))
    shares = wrong_pairs(score, label, 0.05)
    assert shares["wrong"] == pytest.approx((1 - kendall_tau(score, label)) / 2)
    assert sum(shares[name] for name in WRONG) == pytest.approx(shares["wrong"])


def test_at_most_so_many_configurations_are_analysed_from_the_fastest_to_the_slowest() -> None:
    label = np.random.default_rng(0).permutation(np.arange(1.0, 2001))
    shown = subsample(label, ANALYSED)
    assert len(np.unique(shown)) == ANALYSED
    assert (label[shown[0]], label[shown[-1]]) == (1, 2000)
    assert (np.diff(label[shown]) > 0).all()


def planted(rng: np.random.Generator, noise: float) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return properties of 400 configurations, scores of a model that does not see `unseen`, and runtimes."""
    seen, unseen, overrated, irrelevant = rng.normal(size=(4, 400))
    score = seen + overrated
    runtime = np.exp(0.1 * (seen - 0.5 * unseen + 0.4 * overrated + noise * rng.normal(size=400)))
    properties = {"seen": seen, "unseen": unseen, "overrated": overrated, "irrelevant": irrelevant}
    return properties | {"constant": np.ones(400), "score": 3 * score}, score, runtime


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_effects_point_at_what_the_model_does_not_see(noise: float) -> None:
    properties, score, runtime = planted(np.random.default_rng(1), noise)
    found = partial_correlations(properties, score, runtime)
    assert found.keys() == {"seen", "unseen", "overrated", "irrelevant"}
    assert found["unseen"] < -0.5, "more of it is faster than ranked"
    assert found["overrated"] < -0.2
    assert found["seen"] > 0.2, "the model is a sum in which it weighs too little"
    assert abs(found["irrelevant"]) < 0.1


def test_a_model_that_knows_all_but_the_noise_has_no_effects() -> None:
    rng = np.random.default_rng(2)
    seen, used = rng.normal(size=(2, 500))
    score = seen + 0.3 * used
    found = partial_correlations({"seen": seen, "used": used}, score, np.exp(score + rng.normal(size=500)))
    assert all(abs(value) < 0.1 for value in found.values())


def test_without_a_ranking_the_effects_are_plain_correlations() -> None:
    runtime = np.arange(1.0, 21)
    assert partial_correlations({"faster": -runtime}, np.zeros(20), runtime) == {"faster": pytest.approx(-1)}
    assert partial_correlations({"faster": -runtime}, runtime, runtime) == {}
    assert partial_correlations({"faster": -runtime[:9]}, np.zeros(9), runtime[:9]) == {}, "too few to correlate"


def test_effects_are_means_over_families_of_means_over_graphs() -> None:
    graphs = [("a", {"x": 0.2, "y": 0.1}), ("a", {"x": 0.6}), ("b", {"x": -0.2}), ("b", {}), ("c", {"x": 0.7})]
    assert mean_effects(graphs) == [
        {"property": "x", "effect": pytest.approx(0.3), "families": 3, "agreeing": 2, "graphs": 4},
        {"property": "y", "effect": pytest.approx(0.1), "families": 1, "agreeing": 1, "graphs": 1},
    ]
