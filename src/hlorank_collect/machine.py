"""The machine that measures: its description, whether it is idle enough, and a limit of memory."""

from __future__ import annotations

import os
import platform
import resource
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.version import __version__

MAX_BUSY_CORES = 0.2
"""Busy cores up to which a machine counts as quiet: one busy core makes runtimes vary twice as much."""
_STAT = Path("/proc/stat")
_MAPS = Path("/proc/self/maps")
_MAX_MAPS = Path("/proc/sys/vm/max_map_count")


def _cpu_seconds(text: str) -> tuple[float, float]:
    """Return busy and total CPU time, in seconds summed over the cores, from the first line of /proc/stat."""
    # user nice system idle iowait irq softirq steal; the time of guests is part of user.
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    per_second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / per_second, sum(ticks) / per_second


def busy_cores(seconds: float = 1.5) -> float:
    """Return the average number of busy cores while this process sleeps; the load average where /proc is missing."""
    if not _STAT.exists():
        return os.getloadavg()[0]
    before = _cpu_seconds(_STAT.read_text())
    start = time.monotonic()
    time.sleep(seconds)
    after = _cpu_seconds(_STAT.read_text())
    return (after[0] - before[0]) / (time.monotonic() - start)


def require_quiet() -> None:
    """Raise ConfigError if other work disturbs the runtimes: more than `MAX_BUSY_CORES` are busy."""
    if (busy := busy_cores()) > MAX_BUSY_CORES:
        raise ConfigError(
            f"the machine is busy ({busy:.1f} of {os.cpu_count()} cores), which would disturb the runtimes: stop the "
            "other programs, or give --allow-busy to measure anyway"
        )


def memory_limit() -> int:
    """Return three quarters of the memory, or the limit of this process if that is less, in bytes."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    return min([limit, *(own for own in resource.getrlimit(resource.RLIMIT_DATA) if own != resource.RLIM_INFINITY)])


def limit_memory() -> None:
    """Limit the memory of this process, so that a large allocation fails instead of the machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_limit(), hard))


def used_mappings() -> float:
    """Return the used share of Linux's limit of memory mappings: XLA maps each kernel, and crashes at the limit."""
    if not _MAX_MAPS.exists():
        return 0.0
    with _MAPS.open("rb") as lines:
        return sum(1 for _ in lines) / int(_MAX_MAPS.read_text())


def description() -> dict[str, Any]:
    """Return the conditions of a measurement: CPU model, cores, versions, XLA's flags, date (UTC)."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "hlorank": __version__,
            **{name: version(name) for name in ("jax", "jaxlib")},
        },
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
