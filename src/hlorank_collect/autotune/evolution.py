"""Evolutionary search for promising configurations on the scores of a model, which costs no measurement."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import Int64
from hlorank.hlo.layout_space import Float64, Layouts, LayoutSpace, random
from hlorank_collect.autotune.acquisition import NodeEffects

Score = Callable[[Layouts], Float64]
"""Maps (configurations, configurable nodes, 18) configurations to their scores, larger = slower."""

_REFERENCE = 128  # random configurations that give scores their scale, ranked together with each generation
_PARENTS = 32
_GENERATIONS = 3  # before each batch
_TRIES = 20  # draws for each child before a space counts as exhausted


class Evolution:
    """Population of configurations that grows by mutation and crossover of the most promising ones.

    A quarter is drawn at random around the default; the others descend from the configurations of the largest expected
    improvement, at most one for each set of kinds of changed nodes. A mutation changes layouts of all nodes of a
    kind at once, or of one of them: in a deep program, what gains by one layer is lost in the noise. The population
    `layouts`, the default first, grows to `size` configurations in `batches` calls of `choose`. Their `scores` are
    relative to the default, in standard deviations over random configurations.
    """

    def __init__(
        self, space: LayoutSpace, kinds: Int64, score: Score, *, size: int, batches: int, rng: np.random.Generator
    ) -> None:
        self._space, self._kinds, self._score, self._rng = space, kinds, score, rng
        self._generation = max(1, math.ceil(0.75 * size / (batches * _GENERATIONS)))
        self._left = size
        self._members = [np.flatnonzero(kinds == kind) for kind in range(int(kinds.max()) + 1)]
        ranks = [space.ranks[nodes[0]].tolist() for nodes in self._members]
        self._slots = [[(tensor, rank) for tensor, rank in enumerate(row) if rank > 1] for row in ranks]
        self._mutable = np.flatnonzero([bool(slots) for slots in self._slots])
        drawn = random(space, max(2, math.ceil(size / 4)), rng, score)
        self._reference = drawn[:_REFERENCE]
        self._known: set[bytes] = set()
        self.layouts, self.scores = drawn[:0], np.zeros(0)
        self._add(drawn)

    def choose(self, measured: Mapping[int, float], excluded: set[int], count: int) -> Int64:
        """Let the population grow, and choose configurations to measure, given the measured log runtimes."""
        for _ in range(_GENERATIONS):
            self._breed(measured)
        effects = NodeEffects(self.layouts, self._kinds, self.scores)
        return np.array(effects.batch(measured, {0, *excluded}, count), dtype=np.int64)

    def score(self, candidate: int) -> float:
        """Return the score of a configuration."""
        return float(self.scores[candidate])

    def _add(self, layouts: Layouts) -> None:
        """Score configurations together with the reference, which gives the scale."""
        reference = len(self._reference)
        scores = self._score(np.concatenate([self._reference, layouts]))
        scale = scores[:reference].std()
        relative = (scores[reference:] - scores[0]) / scale if scale > 0 else np.zeros(len(layouts))
        self.layouts = np.concatenate([self.layouts, layouts])
        self.scores = np.concatenate([self.scores, relative])
        self._known.update(configuration.tobytes() for configuration in layouts)
        self._left -= len(layouts)

    def _breed(self, measured: Mapping[int, float]) -> None:
        """Add a generation of children."""
        parents = self._parents(measured)
        children: dict[bytes, Layouts] = {}
        wanted = min(self._generation, self._left)
        for _ in range(_TRIES * wanted):
            if len(children) == wanted:
                break
            first, second = parents[self._rng.integers(len(parents), size=2)]
            child = self._mutated(first) if self._rng.random() < 0.5 else self._crossed(first, second)
            if (key := child.tobytes()) not in self._known:
                children[key] = child
        if children:
            self._add(np.stack([*children.values()]))

    def _parents(self, measured: Mapping[int, float]) -> Layouts:
        """Return the default, and the most promising configuration of each set of changed kinds."""
        effects = NodeEffects(self.layouts, self._kinds, self.scores)
        expected = effects.improvement(measured, min([0.0, *measured.values()]))
        order = np.argsort(-expected, kind="stable")
        _, first = np.unique(effects.changed.toarray()[order] > 0, axis=0, return_index=True)
        return self.layouts[[0, *order[np.sort(first)][:_PARENTS].tolist()]]

    def _mutated(self, parent: Layouts) -> Layouts:
        """Return a copy with new layouts of one or a few kinds."""
        child = parent.copy()
        count = min(int(self._rng.geometric(0.5)), len(self._mutable))
        for kind in self._rng.choice(self._mutable, size=count, replace=False).tolist():
            nodes = self._members[kind]
            if self._rng.random() < 0.25:
                nodes = self._rng.choice(nodes, size=1)
            slots = self._slots[kind]
            for place in self._rng.choice(len(slots), size=int(self._rng.integers(len(slots))) + 1, replace=False):
                tensor, rank = slots[place]
                start = tensor * LAYOUT_DIMS
                chosen = self._space.draw(int(nodes[0]), tensor, self._rng) if self._rng.random() < 0.75 else -1
                child[nodes, start : start + rank] = chosen
        return child

    def _crossed(self, first: Layouts, second: Layouts) -> Layouts:
        """Return a configuration with the layouts of either parent, kind by kind."""
        other = self._rng.random(len(self._members)) < 0.5
        crossed: Layouts = np.where(other[self._kinds][:, None], second, first)
        return crossed
