"""Searches for layout configurations to measure: random and default as in TpuGraphs, and both for models."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.hlo.layout_space import Layouts, LayoutSpace

Float64 = NDArray[np.float64]
Quick = Callable[[Layouts], Float64]
"""Maps (batch, configurable nodes, 18) configurations to (batch,) runtimes of few rounds, inf where one fails.

The unit is arbitrary, and the same for all batches.
"""

GENERATION = 8
"""Size of a generation of the search `default`, and number of the fastest configurations that may be its parents."""
_TRIES = 50  # draws for each new configuration before a space counts as exhausted


Search = Callable[[LayoutSpace, int, np.random.Generator, Quick], Layouts]
"""Finds so many different configurations, fewer where the space has no more.

They are (at most `count`, configurable nodes, 18) int8, the compiler's default first.
"""


def _changed(
    space: LayoutSpace, configuration: Layouts, chosen: NDArray[np.bool_], rng: np.random.Generator
) -> Layouts:
    """Return a copy in which chosen nodes have random layouts: any permutation, or the compiler's choice."""
    result = configuration.copy()
    result[chosen] = -1
    for node, tensor, rank in space.slots():
        # The compiler's choice is as likely as each permutation.
        if chosen[node] and rng.integers(math.factorial(rank) + 1):
            start = tensor * LAYOUT_DIMS
            result[node, start : start + rank] = rng.permutation(rank)
    return result


def _fill(known: dict[bytes, Layouts], count: int, draw: Callable[[], Layouts]) -> None:
    """Draw until `count` different configurations are known, or many draws in a row find no more."""
    for _ in range(_TRIES * (count - len(known))):
        if len(known) >= count:
            break
        drawn = draw()
        known.setdefault(drawn.tobytes(), drawn)


def random(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:  # noqa: ARG001 (a Search)
    """Change each node of the default with a probability that is log-uniform in 1 / nodes to 1 per configuration."""
    known = {space.default.tobytes(): space.default}

    def draw() -> Layouts:
        probability = math.exp(rng.uniform(-math.log(space.nodes), 0))
        return _changed(space, space.default, rng.random(space.nodes) < probability, rng)

    _fill(known, count, draw)
    return np.stack([*known.values()])


def default(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:
    """Mutate and select, starting from the default: each child changes few nodes of one of the fastest so far."""
    return _evolve(space, {space.default.tobytes(): space.default}, count, rng, quick, lambda: int(rng.geometric(0.5)))


def models(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:
    """Find one half as `random`, the other half by mutation and selection starting from the first.

    The number of nodes that a child changes is log-uniform: of a thousand nodes, few would change no runtime visibly.
    """
    known = {drawn.tobytes(): drawn for drawn in random(space, max(count // 2, 1), rng, quick)}
    return _evolve(space, known, count, rng, quick, lambda: int(space.nodes ** rng.random()))


def _evolve(
    space: LayoutSpace,
    known: dict[bytes, Layouts],
    count: int,
    rng: np.random.Generator,
    quick: Quick,
    mutations: Callable[[], int],
) -> Layouts:
    """Mutate and select until `count` configurations are known; `mutations` draws the nodes that a child changes."""
    runtimes: Float64 = np.zeros(0)
    while len(runtimes) < len(known) < count:
        members = np.stack([*known.values()])
        runtimes = np.concatenate([runtimes, quick(members[len(runtimes) :])])
        parents = members[np.argsort(runtimes, kind="stable")[:GENERATION]]

        def draw(parents: Layouts = parents) -> Layouts:
            # Faster parents have more children: the index is the smaller of two draws.
            parent = parents[rng.integers(len(parents), size=2).min()]
            chosen = np.zeros(space.nodes, dtype=np.bool_)
            chosen[rng.choice(space.nodes, size=min(mutations(), space.nodes), replace=False)] = True
            return _changed(space, parent, chosen, rng)

        _fill(known, min(count, len(known) + GENERATION), draw)
    return np.stack([*known.values()])


SEARCHES: dict[str, Search] = {"random": random, "default": default, "models": models}
"""Last part of a collection's address -> search."""
