"""Whether a configuration is faster than the default beyond noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as the default one a configuration is.

    Attributes:
        estimate: the median over rounds.
        low: the lower end of its confidence interval of 95 %.
        high: the upper end.
    """

    estimate: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """Whether it is faster beyond noise."""
        return self.low > 1


def speedup(times: Float64, configuration: int, rng: np.random.Generator) -> Speedup:
    """The speedup of one configuration over the default, whose times are in the first column.

    The median over rounds of the quotient of both times in a round, which is free of what slows down whole rounds;
    its interval is the percentile bootstrap over rounds.

    Args:
        times: (rounds, configurations) nanoseconds, at least two rounds.
        configuration: its column.
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
    """The fastest configuration, and its speedup over the default.

    It is chosen by every other round, and its speedup is estimated on the rounds between: on the rounds that chose it
    the best of many looks better than it is.

    Args:
        times: (rounds, configurations) nanoseconds, the default first; at least four rounds.
        rng: draws the resamples.

    Returns:
        The column of the configuration, not the default's, and its speedup, which may be none.

    Raises:
        ValueError: there are fewer than four rounds, or nothing but the default.
    """
    if len(times) < 4 or times.shape[1] < 2:
        raise ValueError(f"times: expected at least (4, 2), found {times.shape}")
    logs = np.log(times[::2])
    best = 1 + int(np.argmin(np.median(logs[:, 1:] - logs[:, :1], axis=0)))
    return best, speedup(times[1::2], best, rng)
