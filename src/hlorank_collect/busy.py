"""Whether the machine is quiet enough to measure on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hlorank.config import ConfigError

QUIET = 0.2
"""Busy cores up to which a machine counts as quiet: one that is busy alone makes runtimes vary twice as much."""
_STAT = Path("/proc/stat")


def _cpu_seconds(text: str) -> tuple[float, float]:
    """Busy and all CPU time, in seconds summed over the cores, from the first line of /proc/stat."""
    # user nice system idle iowait irq softirq steal; guests are counted in user already.
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    per_second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / per_second, sum(ticks) / per_second


def busy_cores(seconds: float = 1.5) -> float:
    """How many cores were busy on average during this time, this process asleep; the load average without /proc."""
    if not _STAT.exists():
        return os.getloadavg()[0]
    before = _cpu_seconds(_STAT.read_text())
    start = time.monotonic()
    time.sleep(seconds)
    after = _cpu_seconds(_STAT.read_text())
    return (after[0] - before[0]) / (time.monotonic() - start)


def require_quiet() -> None:
    """Raises ConfigError where other work would spoil the runtimes; its message names the remedy."""
    if (busy := busy_cores()) > QUIET:
        raise ConfigError(
            f"the machine is busy ({busy:.1f} of {os.cpu_count()} cores), which would spoil the runtimes: stop what "
            "else runs, or give --allow-busy to measure all the same"
        )
