"""What instructions read of their operands, on small graphs."""

from __future__ import annotations

import pytest

from hlorank.featurize.accesses import Access, Accesses, Axis, dot_axes
from hlorank.fetch.synthetic.program import Program, Shape, convolution_columns

LHS, RHS = Axis(0), Axis(1)
K, K1 = Axis(reduced=0), Axis(reduced=1)


def access(opcode: str, dims: Shape, *operands: Shape, columns: dict[int, int] | None = None) -> Access:
    """Return the access of an instruction whose operands are parameters of the given shapes."""
    program = Program()
    node = program.add(opcode, dims, [program.add("parameter", one) for one in operands], columns=columns)
    return Accesses(program.graph()).access(node)


@pytest.mark.parametrize(
    ("output", "left", "right", "expected"),
    [
        ([4, 5], [4, 3], [3, 5], ((LHS, K), (K, RHS))),
        ([4, 5], [3, 4], [3, 5], ((K, LHS), (K, RHS))),
        ([4, 4], [4, 4], [4, 4], ((LHS, K), (K, RHS))),  # ambiguous: the last and the first dimension
        ([2, 4, 5], [2, 4, 3], [2, 3, 5], ((Axis(0), Axis(1), K), (Axis(0), K, Axis(2)))),
        ([4, 5], [4, 2, 3], [2, 3, 5], ((LHS, K, K1), (K, K1, RHS))),
        ([], [3], [3], ((K,), (K,))),
        ([4, 5], [4, 3], [2, 5], None),
    ],
)
def test_dots(
    output: list[int], left: list[int], right: list[int], expected: tuple[tuple[Axis, ...], tuple[Axis, ...]] | None
) -> None:
    assert dot_axes(output, left, right) == expected


def test_a_dot_reduces_the_contracted_dimensions() -> None:
    found = access("dot", (4, 5), (4, 2, 3), (2, 3, 5))
    assert found == Access((2, 3), ((0, (LHS, K, K1)), (1, (K, K1, RHS))))


def test_a_convolution_reduces_its_window_and_the_input_features() -> None:
    columns = convolution_columns((3, 1), 2, 4)
    found = access("convolution", (8, 16, 16, 7), (8, 32, 32, 5), (3, 1, 5, 7), columns=columns)
    image = (Axis(0), Axis(1, 0, stride=2), Axis(2, 1, stride=2), Axis(reduced=2))
    kernel = (Axis(reduced=0), Axis(reduced=1), Axis(reduced=2), Axis(3))
    assert found == Access((3, 1, 5), ((0, image), (1, kernel)))


def test_a_reduction_reduces_dimensions_of_the_array() -> None:
    found = access("reduce", (4,), (4, 3), (), columns={31: 1})
    assert found == Access((3,), ((0, (Axis(0), K)), (1, ())))


def test_operands_of_other_instructions_by_dimension() -> None:
    assert access("add", (4, 5), (4, 5)).operands == ((0, (LHS, RHS)),)
    assert access("broadcast", (4, 5), (5,), columns={31: 1}).operands == ((0, (RHS,)),)
    assert access("reshape", (4, 5), (20,)).operands == ((0, None),)
