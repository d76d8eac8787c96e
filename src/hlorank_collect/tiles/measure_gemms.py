"""Child process that measures Triton GEMM configurations of the matrix products of one program."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import numpy as np

from hlorank.data.collection import sidecar_path
from hlorank.files import read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record, xla
from hlorank_collect.compiled_layouts import Attempts, Compiled
from hlorank_collect.modules.dataflow import Demand
from hlorank_collect.modules.module_program import draw
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report, TileTask
from hlorank_collect.tiles import triton_gemm
from hlorank_collect.tiles.triton_gemm import Gemm, GemmConfiguration
from hlorank_collect.timing import Float64, Rounds, measure

WHAT = (
    "Triton GEMM configurations of XLA's GPU compiler for single matrix products, measured on a GPU: block_m "
    "and block_n as output bounds, block_k as kernel bounds; split_k, num_stages and num_warps as input bounds. Not "
    "TPU data."
)
"""Description in the JSON file of each product."""
MIN_RUNTIME = 100e3
"""Products are measured if the default configuration takes at least this time, in ns, which includes the launch."""
Heartbeat = Callable[[int], None]
"""Function of the number of finished rounds, which tells that a product is being measured."""
_SECONDS = 0.5  # of measuring for each configuration; no round is started after it
_TRITON = b"__triton"  # prefix of the kind of all fusions that XLA compiles with Triton
_MAX_TOO_FAST = 6  # products are tried from large to small: after so many that are too fast, the others are too
_SUMMARIZED = ("kind", "measured", "rounds", "split_half_tau", "noise_ceiling", "runtime_ns", "seconds")


class TooFastError(SkippedError):
    """A product whose runtime is too short for a precise measurement."""


def compile_gemm(module: HloModuleProto, configuration: GemmConfiguration, platform: xla.Platform) -> xla.Executable:
    """Compile a module of one dot with a configuration; raise RuntimeError if XLA does not take Triton."""
    executable = xla.compile_module(module.SerializeToString(), platform, configuration.options())
    if _TRITON not in executable.module():
        raise RuntimeError("XLA compiles it without Triton")
    return executable


def measure_gemm(
    gemm: Gemm, task: TileTask, heartbeat: Heartbeat
) -> tuple[list[GemmConfiguration], Float64, dict[str, Any]]:
    """Return configurations, the default first, their times (rounds, configurations), and what is known of them."""
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(gemm.fingerprint[:8], 16)])
    drawn = triton_gemm.draw_configurations(gemm.sizes, task.configurations, rng)
    if 2 * len(drawn) < task.configurations:
        raise SkippedError(f"fewer than {task.configurations // 2} configurations")
    inputs = xla.put([draw(shape, Demand(), rng) for shape in gemm.module.host_program_shape.parameters], task.platform)
    compiled = Compiled(
        lambda configuration: compile_gemm(gemm.module, configuration, task.platform),
        attrgetter("name"),
        drawn[0],
        inputs,
        Attempts(lambda _: heartbeat(0)),
    )
    default = compiled.timer(drawn[:1])
    if min(default(0) for _ in range(3)) < MIN_RUNTIME:  # the first call is slower
        raise TooFastError(f"the default configuration takes less than {MIN_RUNTIME / 1e3:g} us")
    kept = [configuration for configuration in drawn if compiled.result(configuration) is not None]
    if len(kept) < 2:
        raise SkippedError(f"only its default configuration works: {next(iter(compiled.left_out.values()))}")
    ready = time.monotonic()
    timer, deadline = compiled.timer(kept), ready + _SECONDS * len(kept)
    times = measure(timer, len(kept), rng, Rounds(max=task.rounds), deadline=deadline, heartbeat=heartbeat)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    return kept, times, {"left_out": compiled.left_out, "seconds": seconds}


def _write(gemm: Gemm, task: TileTask, family: str, heartbeat: Heartbeat) -> dict[str, Any]:
    """Measure a product, write its npz and JSON file, and return the content of the latter."""
    load = os.getloadavg()[0]
    configurations, times, known = measure_gemm(gemm, task, heartbeat)
    runtime = record.measurements(times).runtime
    tuning = ModuleTuningData(module=gemm.module, fingerprint=int(gemm.fingerprint[:16], 16))
    for number, (configuration, nanoseconds) in enumerate(zip(configurations, runtime.tolist(), strict=True)):
        run = tuning.runs.add(is_default=number == 0)
        run.op_config.tile_size_config.CopyFrom(configuration.bounds(gemm.sizes))
        run.profile.compute_time_ns = nanoseconds
    npz = task.npz(gemm.name)
    graph, _ = featurize(Record(gemm.name, npz, "", gemm.module, tuning), "tile")
    about = {
        "name": gemm.name,
        "program": task.program,
        "family": family,
        "what": WHAT,
        "kind": "dot",
        "gemm": asdict(gemm.sizes),
        "compiler": {"options": dict(triton_gemm.OPTIONS)},
        "structure": gemm.fingerprint,
        "fingerprint": task.settings,
        "collection": task.collection,
        "seed": task.seed,
        "core": task.core,
        "nodes": graph.graph.nodes,
        **known,
        **record.quality(times),
        **record.conditions(task.platform, load),
    }
    record.write(npz, graph, about)
    return about


def measure_gemms(task: TileTask, report: Report) -> dict[str, Any]:
    """Measure the largest products of one program; write the files of each, and return the content of one of all."""
    report(Progress("trace"))
    program = task.load()
    module = HloModuleProto.FromString(program.trace(task.platform).module)
    gemms, left_out = triton_gemm.extract_gemms(program.name, module)
    complete = (path for path in sorted(task.folder.glob("*.npz")) if record.is_complete(path, task.settings))
    before = {str(about["structure"]): about for about in map(read_json, map(sidecar_path, complete))}
    measured: dict[str, dict[str, Any]] = {}
    too_fast = 0
    for gemm in sorted(gemms, key=lambda gemm: gemm.sizes.work, reverse=True):
        if len(measured) == task.kernels or too_fast == _MAX_TOO_FAST:
            break

        def heartbeat(rounds: int, name: str = gemm.name) -> None:
            report(Progress("measure", name, (len(measured) + rounds / task.rounds) / task.kernels))

        known = before.get(gemm.fingerprint)
        try:
            if gemm.name in task.left_out:
                raise SkippedError(task.left_out[gemm.name])
            if known is not None and known["name"] != gemm.name:
                raise SkippedError("measured in another program")
            measured[gemm.name] = known or _write(gemm, task, program.family, heartbeat)
        except SkippedError as error:
            left_out[str(error)] += 1
            too_fast += isinstance(error, TooFastError)
    about = {
        "name": program.name,
        "family": program.family,
        "fingerprint": task.fingerprint,
        "harvested": {"dot": len(gemms)},
        "left_out": dict(left_out),
        "kernels": {name: {key: one[key] for key in _SUMMARIZED} for name, one in measured.items()},
    }
    write_json(task.summary(program.name), about)
    return about
