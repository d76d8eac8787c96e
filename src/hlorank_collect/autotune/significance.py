"""Test whether a configuration is faster than the default beyond noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Speedup:
    """Runtime of the default divided by that of a configuration, with its uncertainty.

    Attributes:
        estimate: the median over rounds.
        low: lower end of the 95 % confidence interval.
        high: upper end of the interval.
    """

    estimate: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """True if the configuration is faster beyond noise."""
        return self.low > 1


def speedup(times: Float64, configuration: int, rng: np.random.Generator) -> Speedup:
    """Estimate the speedup of one configuration over the default, whose times are in the first column.

    The estimate is the median over rounds of the quotient of both times in a round, in which effects on whole rounds
    cancel; its interval is the percentile bootstrap over rounds.

    Args:
        times: (rounds, configurations) nanoseconds, at least two rounds.
        configuration: column of the configuration.
        rng: draws the resamples.
    """
    from scipy.stats import bootstrap

    logs = np.log(times[:, 0]) - np.log(times[:, configuration])
    if np.ptp(logs) == 0:
        only = float(np.exp(logs[0]))
        return Speedup(only, only, only)
    interval = bootstrap(
        (logs,), np.median, confidence_level=CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", rng=rng
    ).confidence_interval
    return Speedup(*(float(np.exp(value)) for value in (np.median(logs), interval.low, interval.high)))


def winner(times: Float64, rng: np.random.Generator) -> tuple[int, Speedup]:
    """Choose the fastest configuration, and estimate its speedup over the default.

    The configuration is chosen on the even rounds, and its speedup is estimated on the odd rounds: on the same rounds,
    the speedup of the best of many would be overestimated.

    Args:
        times: (rounds, configurations) nanoseconds, the default first; at least four rounds.
        rng: draws the resamples.

    Returns:
        The column of the configuration, never the default's, and its speedup, which may be below 1.

    Raises:
        ValueError: `times` has fewer than four rows, or a single column.
    """
    if len(times) < 4 or times.shape[1] < 2:
        raise ValueError(f"times: expected at least (4, 2), found {times.shape}")
    logs = np.log(times[::2])
    best = 1 + int(np.argmin(np.median(logs[:, 1:] - logs[:, :1], axis=0)))
    return best, speedup(times[1::2], best, rng)
