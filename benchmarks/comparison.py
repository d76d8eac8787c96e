"""Paired comparison of experiments on the graphs that none of them was trained or chosen on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hlorank.files import atomic_path

DRAWS = 10_000
LEVEL = 0.95
_COLOURS = {"ahead": "#0072B2", "level": "#DDDDDD", "behind": "#D55E00"}  # of Okabe and Ito; the words say it, too

Verdict = Literal["ahead", "level", "behind"]
Graph = tuple[str, str]
"""A graph by its collection and name."""


class Difference(NamedTuple):
    """Mean difference of Kendall tau, first - second, with a bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Ahead if the whole interval is above 0, behind if it is below, else level."""
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "level"

    def __str__(self) -> str:
        return f"{self.verdict} {self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"

    def reversed(self) -> Difference:
        """Return the difference of the second and the first."""
        return Difference(-self.mean, -self.high, -self.low)


def difference(
    first: Mapping[Graph, float], second: Mapping[Graph, float], family: Mapping[Graph, str], seed: int = 0
) -> Difference | None:
    """Compare two experiments on the graphs that both have.

    The mean is over the graphs of a collection, then over collections. Graphs of a family are alike, so that the
    bootstrap draws families with replacement, the same for all collections: a percentile interval of `LEVEL`.

    Args:
        first: Kendall tau of each graph, a mean over seeds.
        second: the same of the other experiment.
        family: model family of each graph.
        seed: seed of the draws.

    Returns:
        None where they have no graph in common.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    collections, of_collection = np.unique([graph[0] for graph in common], return_inverse=True)
    families, of_family = np.unique([family[graph] for graph in common], return_inverse=True)
    sums, counts = np.zeros((2, len(families), len(collections)))
    np.add.at(sums, (of_family, of_collection), [first[graph] - second[graph] for graph in common])
    np.add.at(counts, (of_family, of_collection), 1)
    each = np.full(len(families), 1 / len(families))
    drawn = np.random.default_rng(seed).multinomial(len(families), each, DRAWS).astype(np.float64)
    number = drawn @ counts
    seen = (number > 0).all(axis=1)  # a draw may lack a collection of few families
    means = (drawn[seen] @ sums / number[seen]).mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float((sums.sum(axis=0) / counts.sum(axis=0)).mean()), float(low), float(high))


def compare(
    taus: Mapping[str, Mapping[Graph, float]], family: Mapping[Graph, str]
) -> dict[tuple[str, str], Difference]:
    """Return the difference of each pair of experiments, in both orders; none of pairs without a common graph."""
    found = dict[tuple[str, str], Difference]()
    for first, second in combinations(taus, 2):
        if (pair := difference(taus[first], taus[second], family)) is not None:
            found |= {(first, second): pair, (second, first): pair.reversed()}
    return found


def verdicts(names: Sequence[str], pairs: Mapping[tuple[str, str], Difference]) -> str:
    """Return a Markdown table of each pair: the row's experiment is ahead of, level with or behind the column's."""
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for first in names:
        cells = [str(pairs.get((first, second), "")) for second in names]
        lines.append(f"| {first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(
    places: Mapping[str, tuple[Sequence[str], Mapping[str, NDArray[np.float64]], Mapping[tuple[str, str], Difference]]],
    path: Path,
) -> None:
    """Write an SVG: for each collection the Kendall tau of each experiment, and the verdict of each pair.

    Equal arguments give equal bytes.

    Args:
        places: for each collection, or mean of several, the experiments in order, (seeds,) tau of each, and the pairs.
        path: of the SVG.
    """
    with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none", "font.size": 8}):
        heights = [1.6 + 0.3 * len(names) for names, _, _ in places.values()]
        figure = Figure(figsize=(11, sum(heights)), layout="constrained")
        panels = figure.subplots(len(places), 2, squeeze=False, height_ratios=heights, width_ratios=[1, 2])
        for (dots, matrix), (place, (names, taus, pairs)) in zip(panels, places.items(), strict=True):
            for y, name in enumerate(names):
                dots.plot(taus[name], [y] * len(taus[name]), "o", color="#0072B2", markersize=4, markerfacecolor="none")
                dots.plot([taus[name].mean()], [y], "|", color="#0072B2", markersize=12)
                for x, other in enumerate(names):
                    if (pair := pairs.get((name, other))) is None:
                        continue
                    box = {"facecolor": _COLOURS[pair.verdict], "alpha": 0.45, "edgecolor": "none", "pad": 1.5}
                    matrix.text(x, y, pair.verdict, ha="center", va="center", fontsize=6, bbox=box)
            dots.set_title(place, fontsize=9)
            dots.set_xlabel("Kendall tau, a circle for each seed")
            matrix.set_title("the row's experiment is ... the column's", fontsize=8)
            matrix.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=6)
            matrix.set_xlim(-0.5, len(names) - 0.5)
            dots.grid(axis="x", alpha=0.3)
            for axes in (dots, matrix):
                axes.set_yticks(range(len(names)), names if axes is dots else [])
                axes.set_ylim(len(names) - 0.5, -0.5)
        with atomic_path(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
