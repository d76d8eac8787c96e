"""Child process that measures Triton GEMM configurations of the matrix products of one program."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from hlorank.data.collection import sidecar_path
from hlorank.files import read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record, xla
from hlorank_collect.program import error_line
from hlorank_collect.task import Progress, Report, TileTask
from hlorank_collect.tiles import triton_gemm
from hlorank_collect.tiles.triton_gemm import Gemm, GemmConfiguration, UnsupportedGemmError
from hlorank_collect.timing import Float64, Rounds, WrongOutputError, difference, has_nan, measure, timer_of

WHAT = (
    "Triton GEMM configurations of XLA's GPU compiler for single matrix products, measured on a GPU: block_m "
    "and block_n as output bounds, block_k as kernel bounds; split_k, num_stages and num_warps as input bounds. Not "
    "TPU data."
)
"""Description in the JSON file of each product."""
MIN_RUNTIME = 100e3
"""Products are measured if the default configuration takes at least this time, in ns, which includes the launch."""
_SECONDS = 0.5  # of measuring for each configuration; no round is started after it
_TRITON = b"__triton"  # prefix of the kind of all fusions that XLA compiles with Triton
_MAX_TOO_FAST = 6  # products are tried from large to small: after so many that are too fast, the others are too
_SUMMARIZED = ("kind", "measured", "rounds", "split_half_tau", "noise_ceiling", "runtime_ns", "seconds")


class TooFastError(UnsupportedGemmError):
    """A product whose runtime is too short for a precise measurement."""


def compile_gemm(module: HloModuleProto, configuration: GemmConfiguration, platform: xla.Platform) -> xla.Executable:
    """Compile a module of one dot with a configuration; raise RuntimeError if XLA does not take Triton."""
    executable = xla.compile_module(module.SerializeToString(), platform, overrides=configuration.options())
    if _TRITON not in executable.module():
        raise RuntimeError("XLA compiles it without Triton")
    return executable


def _compiled(
    gemm: Gemm, configurations: list[GemmConfiguration], values: list[Any], task: TileTask, before: Callable[[], object]
) -> tuple[dict[GemmConfiguration, xla.Executable], dict[str, str]]:
    """Return the configurations that give the result of the default, the first one, and why others are left out."""
    executables: dict[GemmConfiguration, xla.Executable] = {}
    left_out: dict[str, str] = {}
    expected: list[Any] = []
    for configuration in configurations:
        before()
        try:
            executable = compile_gemm(gemm.module, configuration, task.platform)
            outputs = [np.asarray(output) for output in executable.run(values)]
            if executables and (wrong := difference(expected, outputs)):
                raise WrongOutputError(wrong)
        except Exception as error:  # the compiler and the backend raise exceptions of many classes
            if not executables:
                raise UnsupportedGemmError(f"the default configuration fails: {error_line(error)}") from error
            left_out[configuration.name] = error_line(error)
            continue
        if not executables:
            expected = outputs
            _check_default(executable, expected, values)
        executables[configuration] = executable
    if len(executables) < 2:
        raise UnsupportedGemmError(f"only its default configuration works: {next(iter(left_out.values()))}")
    return executables, left_out


def _check_default(executable: xla.Executable, outputs: list[Any], values: list[Any]) -> None:
    if has_nan(outputs):
        raise UnsupportedGemmError("NaN in its result")
    timer = timer_of(lambda _: executable.run(values))
    if min(timer(0) for _ in range(3)) < MIN_RUNTIME:  # the first call is slower
        raise TooFastError(f"the default configuration takes less than {MIN_RUNTIME / 1e3:g} us")


def measure_gemm(
    gemm: Gemm, task: TileTask, heartbeat: Callable[[int], None]
) -> tuple[list[GemmConfiguration], Float64, dict[str, Any]]:
    """Return configurations, the default first, their times (rounds, configurations), and what is known of them."""
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(gemm.fingerprint[:8], 16)])
    configurations = triton_gemm.draw_configurations(gemm.sizes, task.configurations, rng)
    if 2 * len(configurations) < task.configurations:
        raise UnsupportedGemmError(f"fewer than {task.configurations // 2} configurations")
    values = xla.put(gemm.random_operands(rng), task.platform)
    executables, left_out = _compiled(gemm, configurations, values, task, lambda: heartbeat(0))
    ready = time.monotonic()
    compiled = [*executables.values()]
    timer, deadline = timer_of(lambda index: compiled[index].run(values)), ready + _SECONDS * len(compiled)
    times = measure(timer, len(compiled), rng, Rounds.up_to(task.rounds), deadline=deadline, heartbeat=heartbeat)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    return [*executables], times, {"left_out": left_out, "seconds": seconds}


def _write(gemm: Gemm, task: TileTask, family: str, heartbeat: Callable[[int], None]) -> dict[str, Any]:
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
    gemms = triton_gemm.extract_gemms(program.name, HloModuleProto.FromString(program.trace(task.platform).module))
    complete = (path for path in sorted(task.folder.glob("*.npz")) if record.is_complete(path, task.settings))
    before = {str(about["structure"]): about for about in map(read_json, map(sidecar_path, complete))}
    measured: dict[str, dict[str, Any]] = {}
    left_out = Counter(gemms.left_out)

    def about_of(gemm: Gemm) -> dict[str, Any]:
        """Measure a product, unless it was measured before; return its JSON content."""
        if about := before.get(gemm.fingerprint):
            if about["name"] == gemm.name:
                return about
            raise UnsupportedGemmError("measured in another program")
        if gemm.name in task.left_out:
            raise UnsupportedGemmError(task.left_out[gemm.name])

        def heartbeat(rounds: int) -> None:
            report(Progress("measure", gemm.name, (len(measured) + rounds / task.rounds) / task.kernels))

        heartbeat(0)
        return _write(gemm, task, program.family, heartbeat)

    too_fast = 0
    for gemm in sorted(gemms.distinct, key=lambda gemm: gemm.sizes.work, reverse=True):
        if len(measured) == task.kernels or too_fast == _MAX_TOO_FAST:
            break
        try:
            measured[gemm.name] = about_of(gemm)
        except UnsupportedGemmError as error:
            left_out[str(error)] += 1
            too_fast += isinstance(error, TooFastError)
    about = {
        "name": program.name,
        "family": program.family,
        "fingerprint": task.fingerprint,
        "harvested": {"dot": len(gemms.distinct)},
        "repeated": gemms.repeated,
        "left_out": dict(left_out),
        "kernels": {name: {key: one[key] for key in _SUMMARIZED} for name, one in measured.items()},
    }
    write_json(task.summary(program.name), about)
    return about
