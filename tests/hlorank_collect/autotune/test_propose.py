"""Batches follow the priorities, and the priorities follow what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank_collect.autotune.propose import Adapted, propose


def priority(_: Mapping[int, float]) -> Any:
    return np.array([3.0, 1.0, 2.0, 0.0, 4.0, 5.0])


def test_batches_are_the_most_promising_candidates_and_end_with_the_budget() -> None:
    asked: list[list[int]] = []

    def measure(chosen: Any) -> Any:
        asked.append(chosen.tolist())
        return 1.0 + chosen

    assert propose(priority, measure, batch=2, budget=5) == {3: 4.0, 1: 2.0, 2: 3.0, 0: 1.0, 4: 5.0}
    assert asked == [[3, 1], [2, 0], [4]]


def test_failed_candidates_cost_no_budget() -> None:
    def measure(chosen: Any) -> Any:
        return np.where(np.isin(chosen, [3, 2]), math.inf, 1.0)

    tried = propose(priority, measure, batch=2, budget=3)
    assert list(tried) == [3, 1, 2, 0, 4]
    assert [one for one, runtime in tried.items() if math.isfinite(runtime)] == [1, 0, 4]


def test_everything_is_tried_once_where_the_budget_allows_more() -> None:
    assert sorted(propose(priority, lambda chosen: np.ones(len(chosen)), batch=4, budget=100)) == [*range(6)]


def test_after_the_time_limit_no_batch_is_started() -> None:
    clock = iter([True, True, False])
    tried = propose(priority, lambda chosen: np.ones(len(chosen)), batch=1, budget=6, in_time=lambda: next(clock))
    assert list(tried) == [3, 1]


def candidates(seed: int = 0) -> tuple[Any, Any, Any]:
    """Return random scores, embeddings that determine the runtimes, and the runtimes."""
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(200, 6))
    runtimes = np.exp(0.3 * np.tanh(embedding[:, 0]) + 0.1 * embedding[:, 1])
    return rng.normal(size=200), embedding, runtimes


def test_before_anything_is_measured_the_scores_are_the_priorities() -> None:
    scores, embedding, _ = candidates()
    np.testing.assert_array_equal(Adapted(scores, embedding)({}), scores)
    np.testing.assert_array_equal(Adapted(scores, embedding)({3: 1.0, 5: math.inf}), scores)


def test_measurements_correct_scores_that_are_wrong() -> None:
    better = []
    for seed in range(5):
        scores, embedding, runtimes = candidates(seed)

        def best(of: Any, runtimes: Any = runtimes) -> float:
            tried = propose(of, lambda chosen: runtimes[chosen], batch=5, budget=25)
            return min(tried.values())

        better.append(best(lambda _, scores=scores: scores) - best(Adapted(scores, embedding)))
    assert min(better) >= 0
    assert np.mean(better) > 0.05


@given(seed=st.integers(0, 20), shift=st.floats(0.1, 10), count=st.integers(2, 30))
@settings(deadline=None, max_examples=25)
def test_priorities_ignore_the_scale_of_scores_and_runtimes(seed: int, shift: float, count: int) -> None:
    scores, embedding, runtimes = candidates(seed)
    measured = {one: float(runtimes[one]) for one in range(count)}
    unscaled = Adapted(scores, embedding)(measured)
    scaled = Adapted(3 * scores + 1, shift * embedding)({one: shift * value for one, value in measured.items()})
    np.testing.assert_allclose(scaled, unscaled + math.log(shift), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3])
def test_equal_embeddings_are_no_error(width: int) -> None:
    scores, runtimes = np.arange(4.0), {0: 1.0, 1: 1.2, 2: 0.9}
    assert np.isfinite(Adapted(scores, np.ones((4, width)))(runtimes)).all()
    assert np.isfinite(Adapted(np.zeros(4), np.ones((4, width)))(dict.fromkeys(range(3), 1.0))).all()
