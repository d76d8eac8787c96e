from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank_collect.tiles.affine_index import Index, linear, strides, within

SIZES = {"a": 3, "b": 4, "c": 2}
indices = st.builds(
    lambda coefficients, constant: sum(
        (Index.variable(name) * factor for name, factor in coefficients.items()), Index((), constant)
    ),
    st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(-6, 6)),
    st.integers(-10, 10),
)


def values(index: Index) -> list[int]:
    """Evaluate the C expression at all values of the variables."""
    spaces = product(*(range(size) for size in SIZES.values()))
    return [eval(str(index), dict(zip(SIZES, point, strict=True))) for point in spaces]


@settings(deadline=None, max_examples=50)
@given(indices, indices, st.integers(-3, 3))
def test_arithmetic_agrees_with_the_values(one: Index, other: Index, factor: int) -> None:
    assert values(one + other) == [a + b for a, b in zip(values(one), values(other), strict=True)]
    assert values(one * factor) == [a * factor for a in values(one)]
    assert one.bounds(SIZES) == (min(values(one)), max(values(one)))


@settings(deadline=None, max_examples=100)
@given(indices, st.integers(1, 12))
def test_a_split_is_quotient_and_remainder(index: Index, divisor: int) -> None:
    if found := index.split(divisor, SIZES):
        quotient, remainder = map(values, found)
        assert [divmod(value, divisor) for value in values(index)] == list(zip(quotient, remainder, strict=True))


def test_merged_dimensions_split_again() -> None:
    merged = Index.variable("a") * 4 + Index.variable("b")
    assert merged.split(4, SIZES) == (Index.variable("a"), Index.variable("b"))
    assert merged.split(3, SIZES) is None


@settings(deadline=None, max_examples=50)
@given(indices, st.integers(1, 12))
def test_conditions_hold_inside_and_only_there(index: Index, size: int) -> None:
    conditions = within(index, size, SIZES)
    spaces = product(*(range(length) for length in SIZES.values()))
    for point, value in zip(spaces, values(index), strict=True):
        names = dict(zip(SIZES, point, strict=True))
        assert all(eval(condition, dict(names)) for condition in conditions) == (0 <= value < size)


def test_places_follow_the_layout() -> None:
    assert strides([2, 3, 4], [0, 2, 1]) == [1, 8, 2]
    place = linear((Index.variable("c"), Index((), 1), Index.variable("b")), [2, 3, 4], [0, 2, 1])
    assert (place.coefficient("c"), place.coefficient("b"), place.constant) == (1, 2, 8)
