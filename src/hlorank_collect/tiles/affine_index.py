"""Affine indices of loop variables, for the address arithmetic of a loop nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Sizes = Mapping[str, int]
"""Variable -> number of its values, which start at 0."""


@dataclass(frozen=True)
class Index:
    """Integer function of variables: constant + sum of coefficient * variable.

    Attributes:
        terms: (variable, coefficient), sorted by variable, no coefficient 0.
        constant: the constant.
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @classmethod
    def variable(cls, name: str) -> Index:
        """Return the index that equals one variable."""
        return cls(((name, 1),))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums.get(name, 0) + coefficient
        terms = tuple(sorted((name, value) for name, value in sums.items() if value))
        return Index(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(tuple((name, value * factor) for name, value in self.terms), self.constant * factor)

    def __str__(self) -> str:
        parts = [name if value == 1 else f"{value} * {name}" for name, value in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)

    @property
    def names(self) -> frozenset[str]:
        """Variables of the index."""
        return frozenset(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        """Return the coefficient of a variable, 0 where it does not occur."""
        return dict(self.terms).get(name, 0)

    def bounds(self, sizes: Sizes) -> tuple[int, int]:
        """Return the smallest and the largest value."""
        reach = [value * (sizes[name] - 1) for name, value in self.terms]
        return self.constant + sum(min(0, r) for r in reach), self.constant + sum(max(0, r) for r in reach)

    def split(self, divisor: int, sizes: Sizes) -> tuple[Index, Index] | None:
        """Return quotient and remainder by a positive divisor, None where they are not affine."""
        quotient, remainder = divmod(self.constant, divisor)
        whole = Index(tuple((n, v // divisor) for n, v in self.terms if v % divisor == 0), quotient)
        rest = Index(tuple((n, v) for n, v in self.terms if v % divisor), remainder)
        low, high = rest.bounds(sizes)
        return (whole, rest) if low >= 0 and high < divisor else None


def strides(dims: Sequence[int], minor_to_major: Sequence[int]) -> list[int]:
    """Return the stride of each dimension of a dense array, in elements."""
    result = [0] * len(dims)
    step = 1
    for dim in minor_to_major:
        result[dim] = step
        step *= dims[dim]
    return result


def linear(index: Sequence[Index], dims: Sequence[int], minor_to_major: Sequence[int]) -> Index:
    """Return the offset of an element in a dense array."""
    total = Index()
    for one, step in zip(index, strides(dims, minor_to_major), strict=True):
        total = total + one * step
    return total


def within(index: Index, size: int, sizes: Sizes) -> list[str]:
    """Return the C conditions for an index to be in 0..size - 1, without those that always hold."""
    low, high = index.bounds(sizes)
    return [f"{index} >= 0"] * (low < 0) + [f"{index} < {size}"] * (high >= size)
