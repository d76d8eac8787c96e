"""The machine that measures: its description, whether it is idle enough, and a limit of memory."""

import math
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
_MAPS = Path("/proc/self/maps")
_MAX_MAPS = Path("/proc/sys/vm/max_map_count")


def busy_cores() -> float:
    """Return the average number of busy cores while this process sleeps."""
    import psutil

    return sum(psutil.cpu_percent(interval=1.5, percpu=True)) / 100


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


def limit_cpu(seconds: float) -> None:
    """End this process by SIGXCPU after more CPU time of all its threads, whatever else runs; inf ends the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = hard if math.isinf(seconds) else math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def used_mappings() -> float:
    """Return the used share of Linux's limit of memory mappings: XLA maps each kernel, and crashes at the limit."""
    with _MAPS.open("rb") as lines:
        return sum(1 for _ in lines) / int(_MAX_MAPS.read_text())


def versions(*libraries: str) -> dict[str, str]:
    """Return the versions of Python, hlorank, jax and other libraries."""
    ours = {"python": platform.python_version(), "hlorank": __version__}
    return ours | {name: version(name) for name in ("jax", "jaxlib", *libraries)}


def description() -> dict[str, Any]:
    """Return the conditions of a measurement: CPU model, cores, versions, XLA's flags, date (UTC)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "versions": versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
