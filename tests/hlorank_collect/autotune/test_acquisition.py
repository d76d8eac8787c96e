"""The process attributes runtimes to nodes, and batches are diverse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.graph import Graph
from hlorank.hlo.node_features import COLUMNS, DIMENSIONS, SHAPE
from hlorank_collect.autotune.acquisition import NodeEffects, node_kinds


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
@settings(deadline=None, max_examples=30)
def test_batches_have_no_repetition_and_end_with_the_configurations(seed: int, known: int) -> None:
    rng = np.random.default_rng(seed)
    changes = [
        {},
        *({node: int(rng.integers(2)) for node in np.flatnonzero(rng.random(4) < 0.5).tolist()} for _ in range(9)),
    ]
    process = NodeEffects(layouts(*changes), rng.integers(2, size=4), np.concatenate([[0.0], rng.normal(size=9)]))
    measured = {1 + one: float(rng.normal()) for one in range(known)}
    chosen = process.batch(measured, {0, *measured}, 20)
    assert sorted(chosen) == sorted(set(range(1, 10)) - set(measured))
    assert all(math.isfinite(value) for value in process.improvement(measured, 0.0))
