"""What collecting leaves: for each program its npz file of the official schema, and a JSON file that says how."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from hlorank import __version__
from hlorank.data.collection import sidecar_path, write_graph
from hlorank.data.graph import MeasuredGraph, Measurements
from hlorank.files import DataError, read_json, write_json
from hlorank.metrics import noise_ceiling
from hlorank_collect.timing import Float64, runtimes, split_half_tau


def complete(npz: Path, fingerprint: str) -> bool:
    """Whether a program has been measured with the settings of this fingerprint."""
    if not npz.exists():
        return False
    try:
        return bool(read_json(sidecar_path(npz)).get("fingerprint") == fingerprint)
    except DataError:
        return False


def write(npz: Path, measured: MeasuredGraph, about: Mapping[str, Any]) -> None:
    """Writes both files, each in one step, the npz last: where it is, the program is complete.

    Args:
        npz: where; the folder is created.
        measured: what the npz holds.
        about: what the JSON holds; `fingerprint`, of the settings, is what `complete` compares.
    """
    npz.unlink(missing_ok=True)  # an older one would pass as complete beside the new JSON
    write_json(sidecar_path(npz), dict(about))
    write_graph(npz, measured)


def measurements(times: Float64) -> Measurements:
    """The runtimes to store, of times (rounds, configurations) in nanoseconds."""
    return Measurements(np.maximum(np.rint(runtimes(times)), 1).astype(np.int64))


def quality(times: Float64) -> dict[str, Any]:
    """How far to trust the runtimes: rounds, split_half_tau and noise_ceiling, null where there is nothing to rank."""
    tau = split_half_tau(times)
    known = not math.isnan(tau)
    return {
        "rounds": len(times),
        "split_half_tau": tau if known else None,
        "noise_ceiling": noise_ceiling(tau) if known else None,
    }


def environment() -> dict[str, Any]:
    """Where and with what this process measures: CPU model, cores, versions, XLA's flags, date (UTC)."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "hlorank": __version__,
            **{name: _version(name) for name in ("jax", "jaxlib")},
        },
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
