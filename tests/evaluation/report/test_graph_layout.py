from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.evaluation.report.graph_layout import Int64, depths, layout


def random_graph(nodes: int, edges: int, seed: int) -> Int64:
    rng = np.random.default_rng(seed)
    users = rng.integers(1, max(nodes, 2), size=edges if nodes > 1 else 0)
    return np.stack([users, (rng.random(len(users)) * users).astype(np.int64)], axis=1)


@given(nodes=st.integers(1, 300), edges=st.integers(0, 600), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_nodes_have_cells_of_their_own_below_their_operands(nodes: int, edges: int, seed: int) -> None:
    links = random_graph(nodes, edges, seed)
    x, y, block = layout(nodes, links)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == nodes
    assert x.min() >= 0
    assert y.min() >= 0
    users, operands = links.T
    same = block[users] == block[operands]
    assert (y[users] > y[operands])[same].all()
    assert (block[users] >= block[operands]).all(), "columns are read from left to right"
    again = layout(nodes, links)
    assert all((one == other).all() for one, other in zip((x, y, block), again, strict=True))


def test_constants_are_next_to_their_users_and_results_as_high_as_possible() -> None:
    # 0 -> 1 -> 2 -> 3, the constant 4 is consumed by 5 along with 3, and 6 is another result of 1.
    edges = np.array([[1, 0], [2, 1], [3, 2], [5, 3], [5, 4], [6, 1]])
    assert depths(7, edges).tolist() == [0, 1, 2, 3, 3, 4, 2]


def test_a_chain_is_folded_into_columns() -> None:
    nodes = 400
    edges = np.stack([np.arange(1, nodes), np.arange(nodes - 1)], axis=1)
    x, y, block = layout(nodes, edges)
    assert block.max() > 3
    assert y.max() < 60
    for column in range(int(block.max()) + 1):
        assert len(set(x[block == column])) == 1, "a straight line"
        assert (np.diff(y[block == column]) == 1).all()


def test_many_small_graphs_fill_lines_like_words() -> None:
    edges = np.arange(200).reshape(-1, 2)[:, ::-1]
    x, y, block = layout(200, edges)
    assert block.max() == 99
    assert x.max() < 3 * y.max()
    assert y.max() < 3 * x.max()


def test_a_single_node() -> None:
    assert [one.tolist() for one in layout(1, np.zeros((0, 2), dtype=np.int64))] == [[0], [0], [0]]
