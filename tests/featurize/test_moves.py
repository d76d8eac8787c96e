"""Copies of tensors to configured layouts, exact on small ones."""

from __future__ import annotations

import numpy as np

from hlorank.featurize.moves import byte_shares, copy_moves, own_layouts
from hlorank.fetch.synthetic.program import Program


def row(*tensors: list[int], missing: int = -1) -> list[int]:
    """Pad each list to six values, and the row to three tensors."""
    return [value for part in (*tensors, *[[]] * (3 - len(tensors))) for value in [*part, *[missing] * (6 - len(part))]]


def test_own_layouts_and_shares_of_output_and_operands() -> None:
    program = Program()
    left = program.add("parameter", (8, 3), layout=(0, 1))
    right = program.add("parameter", (3, 5), element="bf16")
    program.add("dot", (8, 5), [left, right])
    tensors = np.array([[2, 0, 1], [1, -1, 0]])
    graph = program.graph()
    assert own_layouts(graph, tensors).tolist() == [row([1, 0], [0, 1], [1, 0]), row([1, 0], [], [0, 1])]
    total = 4 * 8 * 3 + 2 * 3 * 5 + 4 * 8 * 5
    expected = np.array([[160, 96, 30], [30, 0, 96]], dtype=np.float32) / total
    np.testing.assert_allclose(byte_shares(graph, tensors), expected, rtol=1e-6)


def test_tensors_without_a_layout_are_row_major() -> None:
    program = Program()
    program.add("parameter", (8, 3), layout=())
    assert own_layouts(program.graph(), np.array([[0, -1, -1]])).tolist() == [row([1, 0])]


def test_what_a_copy_keeps() -> None:
    """Tensors of (1, 4, 5, 6), row-major: dimensions of size 1 do not count, and some layouts have only minor ones."""
    changes: dict[tuple[int, ...], list[float]] = {
        (1, 2, 3, 0): [1, 1, 1],
        (3, 1, 2, 0): [1, 0, 1 / np.sqrt(6)],
        (3, 2, 0, 1): [0, 0, 0],
        (): [0, 0, 0],
        (3, 0, 2): [0, 0, 0],
        (3, 1): [1, 0, 1 / np.sqrt(6)],
        (2,): [1, 1, 1],
    }
    own = np.array([row([3, 2, 1, 0])] * len(changes), dtype=np.int8)
    layouts = np.array([row([*layout]) for layout in changes], dtype=np.int8)
    shapes = np.array([row([1, 4, 5, 6], missing=0)] * len(changes), dtype=np.float32)
    shares = np.array([[0.5, 0.25, 0.125]] * len(changes), dtype=np.float32)
    moves = copy_moves(own, shares, layouts, shapes)
    assert moves.dtype == np.float32
    np.testing.assert_allclose(moves, [[0.5 * weight for weight in weights] for weights in changes.values()], rtol=1e-6)


def test_tensors_are_weighted_by_their_shares() -> None:
    """Output and kernel of (4, 9) are column-major instead of row-major, the input is not, another one is unknown."""
    own = np.array([row([1, 0], [1, 0], [1, 0]), row([], [1, 0])], dtype=np.int8)
    layouts = np.array([row([0, 1], [1, 0], [0, 1]), row([0, 1], [0, 1])], dtype=np.int8)
    shapes = np.array([row([4, 9], [4, 9], [4, 9], missing=0), row([], [4, 9], missing=0)], dtype=np.float32)
    shares = np.array([[0.5, 1, 0.25]] * 2, dtype=np.float32)
    assert copy_moves(own, shares, layouts, shapes).tolist() == [[0.75] * 3, [1] * 3]
