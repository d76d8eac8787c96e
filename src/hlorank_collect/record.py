"""Files of measured graphs, with what could not be measured."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection, sidecar_path, write_graph
from hlorank.data.configurations import MeasuredGraph, Measurements
from hlorank.files import DataError, one_line, read_json, write_json
from hlorank.metrics import noise_ceiling
from hlorank_collect import machine, xla
from hlorank_collect.timing import Float64, runtimes, split_half_tau

LEFT_OUT = "left_out.json"


def write(npz: Path, measured: MeasuredGraph, about: Mapping[str, Any]) -> None:
    """Write the JSON file and then the npz file, each atomically: where the npz exists, the graph is complete."""
    npz.unlink(missing_ok=True)  # an older one would count as complete next to the new JSON file
    write_json(sidecar_path(npz), dict(about))
    write_graph(npz, measured)


def measurements(times: Float64) -> Measurements:
    """Return the runtimes to store, from times (rounds, configurations) in nanoseconds."""
    return Measurements(np.maximum(np.rint(runtimes(times)), 1).astype(np.int64))


def quality(times: Float64) -> dict[str, Any]:
    """Return runtimes and noise of (rounds, configurations) times, the default first; noise is None for equal times."""
    tau = round(split_half_tau(times), 12)
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


def conditions(platform: xla.Platform, load: float | None = None) -> dict[str, Any]:
    """Return whether runtimes are measured or estimated, and where; `load` is the load average before a measurement."""
    device = xla.device_name(platform)
    if platform in xla.TPUS:
        return {"runtimes": "estimated", "rounds": 1, "device": device, "versions": machine.versions("libtpu")}
    loads = {} if load is None else {"load": {"before": load, "after": os.getloadavg()[0]}}
    known = machine.description() | ({"versions": machine.versions("libtpu")} if platform == "tpu" else {})
    return {"runtimes": "measured", "device": device, **known, **loads}


def read_left_out(root: Path) -> dict[str, dict[str, str]]:
    """Return why programs in the folder of `hlorank collect` were left out, by collection and program."""
    path = root / LEFT_OUT
    if not path.is_file():
        return {}
    collections = read_json(path)
    for collection, reasons in collections.items():
        if not (isinstance(reasons, dict) and all(isinstance(why, str) for why in reasons.values())):
            raise DataError(collection, "reasons by program", reasons, file=path)
    return collections


def record_left_out(root: Path, collection: Collection, program: str, reason: str | None) -> None:
    """Record in one line why a program could not be measured; None removes the reason of a measured program."""
    before = read_left_out(root)
    reasons = {name: why for name, why in before.get(str(collection), {}).items() if name != program}
    if reason is not None:
        reasons[program] = one_line(reason)
    after = {name: others for name, others in {**before, str(collection): reasons}.items() if others}
    if after != before:
        write_json(root / LEFT_OUT, after)
