"""Searches for layout configurations worth measuring, named as in TpuGraphs: random and default."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS
from hlorank.hlo.layout_space import LayoutSpace, Rows

Float64 = NDArray[np.float64]
Quick = Callable[[Rows], Float64]
"""Measures (batch, configurable nodes, 18) configurations quickly: (batch,) runtimes, inf where one fails.

In any unit, as long as the runtimes of all batches compare.
"""

GENERATION = 8
"""Configurations of each generation of the search `default`, and the fastest so far that may be its parents."""
_TRIES = 50  # draws for each new configuration before a space counts as exhausted


class Search(Protocol):
    """Finds configurations."""

    def __call__(self, space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Rows:
        """Returns `count` different configurations, fewer where the space holds no more.

        Returns:
            (at most `count`, configurable nodes, 18) int8, the compiler's default first.
        """


def _changed(space: LayoutSpace, configuration: Rows, chosen: NDArray[np.bool_], rng: np.random.Generator) -> Rows:
    """A copy in which the chosen configurable nodes have new layouts, each any permutation or the compiler's choice."""
    result = configuration.copy()
    result[chosen] = -1
    for row, tensor, rank in space.slots():
        # The compiler's choice is as likely as each permutation.
        if chosen[row] and rng.integers(math.factorial(rank) + 1):
            start = tensor * LAYOUT_DIMS
            result[row, start : start + rank] = rng.permutation(rank)
    return result


def _fill(known: dict[bytes, Rows], count: int, draw: Callable[[], Rows]) -> None:
    """Draws until `count` different configurations are known, or there seem to be no more."""
    for _ in range(_TRIES * (count - len(known))):
        if len(known) >= count:
            break
        drawn = draw()
        known.setdefault(drawn.tobytes(), drawn)


def random(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Rows:  # noqa: ARG001 (a Search)
    """Changes the default: each node with one probability a configuration, log-uniform from 1 / nodes to 1."""
    known = {space.default.tobytes(): space.default}

    def draw() -> Rows:
        probability = math.exp(rng.uniform(-math.log(space.nodes), 0))
        return _changed(space, space.default, rng.random(space.nodes) < probability, rng)

    _fill(known, count, draw)
    return np.stack([*known.values()])


def default(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Rows:
    """Mutation and selection from the default on: each child changes few nodes of one of the fastest so far."""
    known = {space.default.tobytes(): space.default}
    runtimes: Float64 = np.zeros(0)
    while len(runtimes) < len(known) < count:
        members = np.stack([*known.values()])
        runtimes = np.concatenate([runtimes, quick(members[len(runtimes) :])])
        parents = members[np.argsort(runtimes, kind="stable")[:GENERATION]]

        def draw(parents: Rows = parents) -> Rows:
            # Faster parents have more children: the place is the smaller of two draws.
            parent = parents[rng.integers(len(parents), size=2).min()]
            changes = min(int(rng.geometric(0.5)), space.nodes)
            chosen = np.zeros(space.nodes, dtype=np.bool_)
            chosen[rng.choice(space.nodes, size=changes, replace=False)] = True
            return _changed(space, parent, chosen, rng)

        _fill(known, min(count, len(known) + GENERATION), draw)
    return np.stack([*known.values()])


SEARCHES: dict[str, Search] = {"random": random, "default": default}
"""By the last part of a collection's address."""
