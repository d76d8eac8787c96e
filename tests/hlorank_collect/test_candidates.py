"""Candidates of a search: effects of nodes, the population of a model, batches, and what is faster beyond noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.graph import Graph
from hlorank.hlo.layout_space import LayoutSpace
from hlorank.hlo.node_features import COLUMNS, DIMENSIONS, SHAPE
from hlorank_collect.autotune.acquisition import NodeEffects, node_kinds
from hlorank_collect.autotune.evolution import Evolution
from hlorank_collect.autotune.search import RandomCandidates, propose, speedup, winner


def layouts(*changes: dict[int, int], nodes: int = 4) -> Any:
    """Return configurations from changes: node -> 0 (row-major output) or 1 (column-major output)."""
    result = np.full((len(changes), nodes, 18), -1, dtype=np.int8)
    for one, change in enumerate(changes):
        for node, order in change.items():
            result[one, node, :2] = [order, 1 - order]
    return result


def test_nodes_of_a_kind_are_equal_and_have_operands_of_equal_shapes() -> None:
    feat = np.zeros((8, 140), dtype=np.float32)
    feat[0:3, COLUMNS["parameter_number"].start] = [0, 1, 2]
    feat[2, SHAPE.start] = 5
    feat[7, DIMENSIONS.start] = 1
    opcode = np.array([1, 1, 1, 2, 7, 7, 7, 7], dtype=np.uint8)
    edges = np.array([[4, 0], [5, 1], [6, 2], [7, 0]])
    graph = Graph(feat, opcode, edges, np.array([0, 8]))
    assert node_kinds(graph, np.array([4, 5, 6, 7])).tolist() == [0, 0, 1, 2]


def test_a_measurement_tells_about_nodes_of_the_kind_and_about_no_other() -> None:
    some = layouts({}, {0: 1}, {1: 1}, {1: 0}, {2: 1}, {0: 1, 2: 1})
    process = NodeEffects(some, np.array([0, 0, 1, 2]), np.array([0.0, 1.0, 1.0, 1.0, 1.0, 2.0]))
    before, _ = process.posterior({})
    after, deviation = process.posterior({1: 0.5})
    assert after[1] == pytest.approx(0.5, abs=0.05)
    assert after[2] == pytest.approx(after[1])  # the same layouts of an equal node
    assert before[3] < after[3] < after[2]  # other layouts of an equal node
    assert after[4] - before[4] < 0.1 * (after[2] - before[2])  # another kind, by the slope alone
    assert after[5] - before[5] > 0.9 * (after[1] - before[1])
    assert deviation[1] < deviation[3] < deviation[4] < deviation[5]


def test_effects_of_several_nodes_are_attributed() -> None:
    some = layouts({}, {0: 1}, {1: 1}, {2: 1}, {0: 1, 1: 1}, {1: 1, 2: 1}, {0: 1, 2: 1})
    truth = np.array([0.0, -0.1, 0.3, 0.02])
    logs = [sum(truth[1 + node] for node in np.flatnonzero((one != -1).any(axis=1)).tolist()) for one in some]
    process = NodeEffects(some, np.arange(4), np.array([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    mean, _ = process.posterior({one: logs[one] for one in (4, 5, 6)})
    assert int(np.argmin(mean)) == 1
    np.testing.assert_allclose(mean[1:4], truth[1:], atol=0.05)


@given(seed=st.integers(0, 1000), known=st.integers(0, 8))
@settings(deadline=None, max_examples=20)
def test_batches_have_no_repetition_and_end_with_the_configurations(seed: int, known: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [{node: int(rng.integers(2)) for node in range(4) if rng.random() < 0.5} for _ in range(9)]
    scores = np.concatenate([[0.0], rng.normal(size=9)])
    process = NodeEffects(layouts({}, *drawn), rng.integers(2, size=4), scores)
    measured = {1 + one: float(rng.normal()) for one in range(known)}
    chosen = process.batch(measured, {0, *measured}, 20)
    assert sorted(chosen) == sorted(set(range(1, 10)) - set(measured))
    assert all(math.isfinite(value) for value in process.improvement(measured, 0.0))


SPACE = LayoutSpace(np.arange(12) * 3, np.tile([2, 2, 0], (12, 1)))
KINDS = np.repeat([0, 1, 2], 4)


def score(layouts: Any) -> Any:
    """Each node of kind 0 whose output is column-major is faster by 1; any other change is slower by 0.5."""
    good = (layouts[:, :, :2] == [0, 1]).all(axis=2) & (KINDS == 0)
    changed = (layouts != -1).reshape(*layouts.shape[:2], 3, 6).any(axis=3).sum(axis=(1, 2))
    return 7 + 0.5 * (changed - good.sum(axis=1)) - good.sum(axis=1)


def evolution(size: int = 120, kinds: Any = KINDS) -> Evolution:
    return Evolution(SPACE, kinds, score, size=size, batches=2, rng=np.random.default_rng(0))


def test_the_population_grows_to_its_size_without_repetition_and_nothing_is_chosen_twice() -> None:
    some = evolution()
    first = some.choose({}, set(), 4).tolist()
    second = some.choose(dict.fromkeys(first[1:], 0.1), set(first), 4).tolist()
    assert not set(first) & set(second)
    some.choose({}, set(), 2)
    assert len(some.layouts) == len({one.tobytes() for one in some.layouts}) == 120
    for one in some.layouts:
        SPACE.check(one)


def test_equal_nodes_change_together() -> None:
    best = []
    for kinds in (KINDS, np.arange(12)):
        some = evolution(size=200, kinds=kinds)
        some.choose({}, set(), 1)
        best.append(score(some.layouts).min())
    assert best[0] == 7 - 4  # all four nodes of the kind, and nothing else
    assert best[0] < best[1]


def test_a_small_space_is_exhausted() -> None:
    space = LayoutSpace(np.array([0]), np.array([[2, 0, 0]]))
    some = Evolution(space, np.array([0]), lambda x: np.zeros(len(x)), size=50, batches=1, rng=np.random.default_rng(0))
    assert sorted(some.choose({}, set(), 10).tolist()) == [1, 2]
    assert some.choose({1: 0.0, 2: 0.1}, {1, 2}, 10).tolist() == []
    assert some.scores.tolist() == pytest.approx([0, 0, 0])


def searched(count: int, failing: tuple[int, ...] = (), **settings: Any) -> tuple[dict[int, float], list[Any]]:
    """Search among candidates 1 to `count`, each 1 slower than the one before; return the tried, and what was asked."""
    candidates = RandomCandidates.__new__(RandomCandidates)
    candidates.layouts = np.zeros((count + 1, 1, 18), np.int8)
    asked: list[Any] = []

    def choose(measured: Mapping[int, float], excluded: set[int], number: int) -> Any:
        chosen = candidates.choose(measured, excluded, number)
        asked.append((dict(measured), chosen.tolist()))
        return chosen

    def measure(chosen: Any) -> Any:
        return np.where(np.isin(chosen, failing), math.inf, 1.0 + chosen)

    return propose(choose, measure, **settings), asked


def test_batches_know_what_was_measured_and_what_fails_costs_no_budget() -> None:
    tried, asked = searched(20, budget=7)
    assert tried == {one: 1.0 + one for one in range(1, 8)}
    assert [chosen for _, chosen in asked] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [measured for measured, _ in asked][:2] == [{}, {1: math.log(2), 2: math.log(3), 3: math.log(4)}]
    tried, asked = searched(9, (1, 3), budget=3)
    assert list(tried) == [1, 2, 3, 4, 5]
    assert [set(measured) for measured, _ in asked] == [set(), set(), {2}, {2}, {2, 4}]
    assert searched(9, budget=3, deadline=0.0) == ({}, [])


def times(relative: list[float], noise: float, rounds: int = 40, seed: int = 0) -> Any:
    """Return times with a random level per round."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 1.0, (rounds, 1)))
    return 1e6 * level * np.array(relative) * np.exp(rng.normal(0, noise, (rounds, len(relative))))


def test_the_speedup_is_exact_without_noise_and_else_its_interval_holds_the_truth() -> None:
    column, found = winner(times([1.0, 0.8, 0.5, 2.0], 0.0), np.random.default_rng(0))
    assert column == 2
    assert (found.estimate, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.real
    few, many = (speedup(times([1.0, 0.9], 0.05, rounds), 1, np.random.default_rng(0)) for rounds in (20, 400))
    for found in (few, many):
        assert found.low < 1 / 0.9 < found.high
        assert found.low < found.estimate < found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_the_best_of_many_equal_ones_does_not_win() -> None:
    wins = [winner(times([1.0] * 31, 0.05, seed=seed), np.random.default_rng(0))[1].real for seed in range(40)]
    # 2.5 % are expected to be wrong at random; if the same rounds chose and judged, nearly all would be.
    assert sum(wins) <= 4
