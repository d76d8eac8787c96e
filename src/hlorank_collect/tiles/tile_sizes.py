"""Choice of the tiles with which a kernel is measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlorank_collect.tiles.nest import Nest, Tile

# Elements: 16 kB of sums and a few rows of operands fit in the first-level cache.
_OUTPUT_ELEMENTS = 4096
_REDUCTION_ELEMENTS = 256
_ATTEMPTS = 20


def default_tile(nest: Nest) -> Tile:
    """Return a tile by a fixed rule: as many whole inner dimensions as fit, then a power of two of the next one."""
    looped = _filled([nest.output[dim] for dim in nest.points], _OUTPUT_ELEMENTS)
    output = [size for _, size in sorted(zip(nest.points, looped, strict=True))]
    return Tile(tuple(output), tuple(_filled(nest.reduced, _REDUCTION_ELEMENTS)))


def _filled(sizes: Sequence[int], budget: int) -> list[int]:
    """Return the sizes of a tile of up to `budget` elements, filled from the last dimension on."""
    tile: list[int] = []
    for size in reversed(sizes):
        tile.append(size if size <= budget else 1 << (budget.bit_length() - 1))
        budget = max(budget // tile[-1], 1)
    return tile[::-1]


def choices(size: int) -> list[int]:
    """Return the possible tile sizes of a dimension: powers of two, three times those, and its divisors."""
    powers = {1 << bit for bit in range(size.bit_length())}
    divisors = {divisor for divisor in range(1, size + 1) if size % divisor == 0}
    halves = {3 << bit for bit in range(size.bit_length())}
    return sorted(one for one in powers | divisors | halves if one <= size)


def draw_tiles(nest: Nest, count: int, rng: np.random.Generator) -> list[Tile]:
    """Draw up to `count` distinct tiles, the default tile first.

    Each size is drawn from the dimension's `choices`, so that sizes are nearly log-uniform.

    Returns:
        Fewer than `count` tiles where the kernel has hardly more.
    """
    extents = (*nest.output, *nest.reduced)
    known = {default_tile(nest): None}
    allowed = [choices(size) for size in extents]
    for _ in range(_ATTEMPTS * count):
        if len(known) >= count:
            break
        sizes = [int(rng.choice(some)) for some in allowed]
        known.setdefault(Tile(tuple(sizes[: len(nest.output)]), tuple(sizes[len(nest.output) :])))
    return list(known)
