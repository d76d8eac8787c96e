"""Headline of a section: the best method, its noise ceiling, and its distance from the second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hlorank.evaluation.report.groups import Group, Score

NOISE = 2
"""Differences below this many spreads over seeds are called noise."""
_EQUAL = 1e-9
_Result = tuple[Group, Score, float]


class Headline(NamedTuple):
    """Headline.

    Attributes:
        title: the method with the highest Kendall tau, or several with the same.
        sentences: noise ceiling, other splits, and the difference from the second method.
    """

    title: str
    sentences: str


def headline(results: Sequence[tuple[Group, Score]]) -> Headline | None:
    """Return the headline of the groups of one collection, None if no group has a Kendall tau.

    The best method is chosen on valid if a group was evaluated there, else on the first evaluated split.

    Args:
        results: group and score, for each split and protocol.
    """
    by_split: dict[str, list[_Result]] = {}
    for group, score in results:
        if score.protocol == "all" and (estimate := score.estimates.get("kendall_tau")) is not None:
            by_split.setdefault(score.split, []).append((group, score, estimate.mean))
    if not by_split:
        return None
    split = "valid" if "valid" in by_split else next(iter(by_split))
    ranked = sorted(by_split[split], key=lambda result: -result[2])
    best, score, tau = ranked[0]
    equal = [group.label for group, _, other in ranked if tau - other < _EQUAL]
    sentences = [f"{_ceiling(score).capitalize()}."]
    if len(ranked) > len(equal):
        sentences.append(_difference(ranked[0], ranked[len(equal)]))
    sentences += [
        f"On {other}: {value:.3f}, {_ceiling(its)}."
        for other, found in by_split.items()
        for group, its, value in found
        if other != split and group is best
    ]
    title = f"{' and '.join(equal)}, Kendall tau {tau:.3f} on {split}"
    if len(ranked) > len(equal):
        incomplete = any(score.runs < len(group.runs) for group, score, _ in ranked)
        title = f"Best{' of the evaluated runs' if incomplete else ''}: {title}"
    return Headline(title, " ".join(sentences))


def _ceiling(score: Score) -> str:
    return "noise ceiling unknown" if score.noise_ceiling is None else f"noise ceiling {score.noise_ceiling:.3f}"


def _difference(best: _Result, second: _Result) -> str:
    """Return the difference of the first two methods, in spreads over seeds if there are several."""
    (_, one, tau), (group, other, tau_of_second) = best, second
    text = f"{tau - tau_of_second:.3f} above {group.label} ({tau_of_second:.3f})"
    if one.graphs != other.graphs:
        return f"{text}, which ranked other graphs."
    spreads = [spread for score in (one, other) if (spread := score.estimates["kendall_tau"].spread) is not None]
    if not spreads:
        return f"{text}; with one run each this may be chance: compare several seeds."
    if (spread := max(spreads)) == 0:
        return f"{text}; equal for all seeds."
    ratio = (tau - tau_of_second) / spread
    noise = ": within noise" if ratio < NOISE else ""
    return f"{text}, {ratio:.1f} times the spread over seeds ({spread:.3f}){noise}."
