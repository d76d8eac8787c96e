"""Metrics of a ranking, in plain numpy arrays: larger scores and larger runtimes are slower.

Every function is about ONE graph; a collection's figure is the mean over its graphs. A graph whose runtimes are all
equal has nothing to rank: its Kendall tau and its ordered pair accuracy are NaN, and callers leave it out and report
the number of graphs left out. Scores and runtimes are vectors (configurations,) of any finite numbers; a ValueError
names different lengths, and the first value that is NaN or infinite.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BEST_TAU, TRAIN_SECONDS = "valid/best_kendall_tau", "train/seconds"
"""Metrics of a finished training: Kendall tau of the epoch whose weights were kept, and seconds of all epochs."""
TRAIN_LOSS, VALID_TAU = "curves/train_loss", "curves/valid_kendall_tau"
"""Metrics of each epoch of a training; MLflow's UI orders charts by prefix, so learning curves come first."""
EXPERIMENT = "experiment"
"""Tag of a training's run: the name of its experiment in conf/experiment, if it has an experiment."""

RESAMPLES, LEVEL = 2_000, 0.95
"""Bootstrap resamples of an interval, and its level."""

Float64 = NDArray[np.float64]


def _vector(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape (configurations,), found {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"{name}: expected finite numbers, found {array[row]} at {row}")
    return array


def _pair(score: ArrayLike, runtime: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    scores, runtimes = _vector("score", score), _vector("runtime", runtime)
    if len(scores) != len(runtimes):
        raise ValueError(f"score and runtime: expected equal lengths, found {len(scores)} and {len(runtimes)}")
    return scores, runtimes


def _constant(values: NDArray[Any]) -> bool:
    return len(values) == 0 or bool((values == values[0]).all())


def _tied_pairs(*columns: NDArray[Any]) -> int:
    """Return the number of pairs of rows that agree in all columns."""
    rows = np.stack([np.unique(column, return_inverse=True)[1] for column in columns])
    counts = np.unique(rows, axis=1, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2


def kendall_tau(score: ArrayLike, runtime: ArrayLike) -> float:
    """Return Kendall's tau-b of scores and runtimes, in O(n log n).

    Where tau-b is 0/0: NaN if all runtimes are equal (nothing to rank), else 0.0 if all scores are equal (no ranking).
    """
    scores, runtimes = _pair(score, runtime)
    if _constant(runtimes):
        return math.nan
    if _constant(scores):
        return 0.0
    from scipy.stats import kendalltau

    return float(kendalltau(scores, runtimes).statistic)


def ordered_pair_accuracy(score: ArrayLike, runtime: ArrayLike) -> float:
    """Return the share of pairs with runtime_i > runtime_j that also have score_i > score_j (OPA), in O(n log n).

    Without ties tau = 2 OPA - 1. NaN if all runtimes are equal.
    """
    scores, runtimes = _pair(score, runtime)
    if _constant(runtimes):
        return math.nan
    pairs = len(scores) * (len(scores) - 1) // 2
    ordered = pairs - _tied_pairs(runtimes)
    distinguished = pairs - _tied_pairs(scores)
    # With C concordant and D discordant pairs, tau-b = (C - D) / sqrt(ordered * distinguished), and C + D follows from
    # the ties by inclusion and exclusion.
    difference = round(kendall_tau(scores, runtimes) * math.sqrt(ordered * distinguished))
    total = ordered + distinguished - pairs + _tied_pairs(scores, runtimes)
    return (total + difference) / 2 / ordered


def ranking(score: ArrayLike) -> NDArray[np.int64]:
    """Return the configurations from fastest to slowest: indices by ascending score, ties by index."""
    return np.argsort(_vector("score", score), kind="stable")


def top_k_slowdown(score: ArrayLike, runtime: ArrayLike, k: int) -> float:
    """Return the slowdown of the best of the first k ranked configurations against the best of all.

    Args:
        score: (configurations,) any finite numbers.
        runtime: (configurations,) positive; nanoseconds, or runtime / normalizer for tiles.
        k: number of configurations that are tried, at least 1; all of them if there are fewer.

    Returns:
        (best runtime among the k lowest scores - best runtime) / best runtime, at least 0.

    Raises:
        ValueError: there are no configurations, `k` is below 1, or a runtime is not positive, as withheld labels are.
    """
    scores, runtimes = _pair(score, runtime)
    if k < 1:
        raise ValueError(f"k: expected at least 1, found {k}")
    if len(runtimes) == 0:
        raise ValueError("runtime: expected at least one configuration, found none")
    best = float(runtimes.min())
    if best <= 0:
        raise ValueError(f"runtime: expected positive runtimes, found {best:g} (are the labels withheld?)")
    return float(runtimes[ranking(scores)[:k]].min()) / best - 1.0


def noise_ceiling(tau_half: float) -> float:
    """Estimate the Kendall tau that a perfect model can reach from the tau of two halves of the measurements.

    The correlation of the halves, rho = sin(pi tau_half / 2) (Greiner), gives the reliability of all measurements
    together, rho_full = 2 rho / (1 + rho) (Spearman-Brown). The correlation of these with the noise-free runtime is its
    square root, which Greiner's formula converts back into a tau.

    Args:
        tau_half: -1..1, the split-half tau, which is a lower bound and not the ceiling.

    Returns:
        0..1; 0 where the halves do not agree at all (tau_half <= 0), NaN for NaN.

    Raises:
        ValueError: `tau_half` is outside -1..1.
    """
    if abs(tau_half) > 1:
        raise ValueError(f"tau_half: expected -1..1, found {tau_half}")
    if tau_half <= 0:
        return 0.0
    rho = math.sin(math.pi * tau_half / 2)
    return 2 / math.pi * math.asin(math.sqrt(2 * rho / (1 + rho)))


def group_medians(group: NDArray[np.integer[Any]], values: NDArray[Any]) -> Float64:
    """Return the median of the values of each group 0..groups-1, of which each is present."""
    from scipy.ndimage import median

    return np.asarray(median(values, group, np.unique(group)), np.float64)


def repeat_ceiling(row_of: NDArray[np.integer[Any]], runtime: ArrayLike) -> float:
    """Return the Kendall tau of a perfect model that must give repeated configurations one score.

    It scores each distinct configuration by the median of its measurements: the best ranking as long as repeats differ
    less than configurations do.

    Args:
        row_of: (configurations,) the distinct configuration of each configuration, 0..distinct-1.
        runtime: (configurations,) any finite numbers.
    """
    rows, runtimes = _pair(row_of, runtime)
    return kendall_tau(group_medians(rows, runtimes)[rows], runtimes) if len(rows) else math.nan


def interval(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the ends of the 95 % interval of a mean over graphs, (graphs,), None for fewer than two graphs.

    The ends are percentiles of 2,000 bootstrap resamples from a fixed seed.
    """
    if len(values) < 2:
        return None, None
    rng, count = np.random.default_rng(0), len(values)
    means = [values[rng.integers(0, count, count)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
