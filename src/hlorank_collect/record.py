"""Files of a measured graph: an npz of the official schema, and a JSON file that describes its measurement."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import sidecar_path, write_graph
from hlorank.data.configurations import MeasuredGraph, Measurements
from hlorank.files import DataError, read_json, write_json
from hlorank.metrics import noise_ceiling
from hlorank_collect import machine, xla
from hlorank_collect.timing import Float64, runtimes, split_half_tau


def is_complete(npz: Path, fingerprint: str) -> bool:
    """Return True if both files exist and were measured with the settings of this fingerprint."""
    if not npz.exists():
        return False
    try:
        return bool(read_json(sidecar_path(npz)).get("fingerprint") == fingerprint)
    except DataError:
        return False


def write(npz: Path, measured: MeasuredGraph, about: Mapping[str, Any]) -> None:
    """Write both files, each atomically, the npz last: where it exists, the graph is complete.

    Args:
        npz: path; its folder is created.
        measured: content of the npz.
        about: content of the JSON file; `is_complete` compares its `fingerprint` of the settings.
    """
    npz.unlink(missing_ok=True)  # an older one would count as complete next to the new JSON file
    write_json(sidecar_path(npz), dict(about))
    write_graph(npz, measured)


def measurements(times: Float64) -> Measurements:
    """Return the runtimes to store, from times (rounds, configurations) in nanoseconds."""
    return Measurements(np.maximum(np.rint(runtimes(times)), 1).astype(np.int64))


def quality(times: Float64) -> dict[str, Any]:
    """Return what the JSON file says about runtimes and noise, from times (rounds, configurations), the default first.

    `split_half_tau` and `noise_ceiling` are None where all runtimes are equal.
    """
    tau = split_half_tau(times)
    known = not math.isnan(tau)
    runtime = measurements(times).runtime
    return {
        "rounds": len(times),
        "split_half_tau": tau if known else None,
        "noise_ceiling": noise_ceiling(tau) if known else None,
        "measured": len(runtime),
        "default": 0,
        "runtime_ns": {"default": int(runtime[0]), "best": int(runtime.min()), "worst": int(runtime.max())},
    }


def conditions(platform: xla.Platform, load: float) -> dict[str, Any]:
    """Return what the JSON file says about the machine; `load` is its load average before the measurement."""
    return {
        "device": xla.device_name(platform),
        **machine.description(),
        "load": {"before": load, "after": os.getloadavg()[0]},
    }
