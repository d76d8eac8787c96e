"""Errors of a ranking: pairs in the wrong order by noise widths, and properties of configurations that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.metrics import ranking

Float64 = NDArray[np.float64]

ANALYSED = 500
"""Configurations of a graph whose pairs are counted: 124,750 pairs."""
WRONG = ("wrong_below_1", "wrong_1_to_2", "wrong_2_to_4", "wrong_above_4")
"""Shares of pairs by the noise widths between their runtimes, in per_graph.csv."""
PROPERTY_COLUMNS = ("split", "property", "effect", "families", "agreeing", "graphs")
"""Columns of properties.csv."""

_BOUNDS = (1, 2, 4)
_MIN_CONFIGURATIONS = 10  # of a graph; correlations of fewer are chance
_CONSTANT = 1e-9  # share of the variance of a property that the score leaves


def subsample(label: Float64, count: int) -> NDArray[np.int64]:
    """Return at most `count` configurations, from the fastest to the slowest, evenly spaced in the measured ranking."""
    last = len(label) - 1
    return ranking(label)[np.linspace(0, last, min(last + 1, count)).astype(np.int64)]


def noise_width(label: Float64, tau_half: float) -> float:
    """Estimate the standard deviation of the noise in the logarithm of the ratio of two measured runtimes.

    If all measurements give a pair the log ratio d, its two halves give d + e and d - e, and the noise of d is
    distributed as e. The halves agree on the order if |e| < |d|. So with normal noise of standard deviation s for all
    pairs, the expected Kendall tau of the halves is the mean over pairs of 4 Phi(|d| / s) - 3, whatever the runtimes
    are; the result is the s that gives `tau_half`, and for a tau of 1 that of half a pair in another order. At least
    two labels differ.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    first, second = np.triu_indices(len(label), 1)
    apart = np.abs(np.log(label[first] / label[second]))
    apart = apart[apart > 0]
    tau = np.clip(tau_half, -0.99, 1 - 1 / len(apart))
    low, high = np.log(apart.min() / 40), np.log(apart.max() * 1000)  # a tau of 1, and of less than -0.99
    return float(np.exp(brentq(lambda log_s: (4 * ndtr(apart / np.exp(log_s)) - 3).mean() - tau, low, high)))


def wrong_pairs(score: Float64, label: Float64, width: float | None) -> dict[str, float]:
    """Return `wrong`, the share of pairs of different runtimes in the wrong order, of which equal scores count as half.

    With the noise width, its parts by the distance of the runtimes in noise widths, `WRONG`, are in the result too.
    """
    first, second = np.triu_indices(len(label), 1)
    apart = np.log(label[first] / label[second])
    different = apart != 0
    order = np.sign(score[first] - score[second]) * np.sign(apart)
    wrong = np.where(different, (1 - order) / 2, 0) / different.sum()
    shares = {"wrong": float(wrong.sum())}
    if width is not None:
        parts = np.bincount(np.digitize(np.abs(apart) / width, _BOUNDS), wrong, minlength=len(WRONG))
        shares |= dict(zip(WRONG, parts.tolist(), strict=True))
    return shares


def partial_correlations(properties: Mapping[str, Float64], score: Float64, label: Float64) -> dict[str, float]:
    """Return the partial Spearman correlation of each property and the runtime, given the score.

    The ranks of both are reduced by what is linear in the ranks of the score. Unlike the share of wrong pairs whose
    faster configuration has more of a property, it is 0 for every property that the score takes full account of, even
    if the runtimes have noise. A positive number means that more of it is slower than the model ranks it. Properties
    are (configurations,) by name; those that are constant or follow from the score are left out, and all of them for
    fewer than ten configurations.
    """
    from scipy.stats import rankdata

    if len(label) < _MIN_CONFIGURATIONS:
        return {}
    ranks = rankdata(np.stack([score, label, *properties.values()]), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    scored = ranks[0] / (np.linalg.norm(ranks[0]) or 1)
    rest = ranks[1:] - np.outer(ranks[1:] @ scored, scored)
    norms = np.linalg.norm(rest, axis=1)
    known = norms > _CONSTANT * len(label) ** 1.5
    rest[known] /= norms[known, None]
    found = zip(properties, known[1:], rest[1:] @ rest[0], strict=True)
    return {name: float(value) for name, varies, value in found if varies and known[0]}


def mean_effects(graphs: Sequence[tuple[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return rows of properties.csv, without the split, of family and partial correlations of graphs, largest first.

    `effect` is the mean over families of means over graphs, `agreeing` the number of families whose mean has its sign.
    """
    by_property: dict[str, dict[str, list[float]]] = {}
    for family, found in graphs:
        for name, value in found.items():
            by_property.setdefault(name, {}).setdefault(family, []).append(value)
    rows = list[dict[str, Any]]()
    for name, families in by_property.items():
        means = np.array([np.mean(values) for values in families.values()])
        effect, agreeing = float(means.mean()), int((np.sign(means) == np.sign(means.mean())).sum())
        counts = {"families": len(means), "agreeing": agreeing, "graphs": sum(map(len, families.values()))}
        rows.append({"property": name, "effect": effect, **counts})
    return sorted(rows, key=lambda row: (-abs(row["effect"]), row["property"]))
