"""Child process that measures Triton GEMM configurations of the matrix products of one program."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from hlorank.data.collection import sidecar_path
from hlorank.files import read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record, xla
from hlorank_collect.child_process import run_child
from hlorank_collect.program import error_line
from hlorank_collect.task import Progress, Report, TileTask
from hlorank_collect.tiles.gemms import Gemm, UnsupportedGemmError, extract_gemms
from hlorank_collect.tiles.triton_gemm import OPTIONS, GemmConfiguration, draw_configurations
from hlorank_collect.timing import Float64, Rounds, WrongOutputError, difference, has_nan, measure, timer_of

WHAT = (
    "Triton GEMM configurations of XLA's GPU compiler for single matrix products, measured on a GPU: block_m "
    "and block_n as output bounds, block_k as kernel bounds; split_k, num_stages and num_warps as input bounds. Not "
    "TPU data."
)
"""Description in the JSON file of each product."""
MIN_RUNTIME = 100e3
"""Products are measured if the default configuration takes at least this time, in ns, which includes the launch."""
_SECONDS_PER_CONFIGURATION = 0.5  # time limit of measuring; no round is started after it
_TRITON = b"__triton"  # prefix of the kind of all fusions that XLA compiles with Triton
_MAX_TOO_FAST = 6  # products are tried from large to small: after so many that are too fast, the others are too
_SUMMARIZED = ("kind", "measured", "rounds", "split_half_tau", "noise_ceiling", "runtime_ns", "seconds")


class TooFastError(UnsupportedGemmError):
    """A product whose runtime is too short for a precise measurement."""


class NotTritonError(RuntimeError):
    """A product that XLA compiled without Triton, so that the configuration had no effect."""


@dataclass(frozen=True, eq=False)
class MeasuredGemm:
    """Configurations of a product, the default first, with their times (rounds, configurations) in nanoseconds."""

    configurations: list[GemmConfiguration]
    times: Float64
    left_out: dict[str, str]
    """Names of configurations that fail -> reason."""
    seconds: dict[str, float]
    """Duration of compiling and of measuring."""


def compile_gemm(module: HloModuleProto, configuration: GemmConfiguration, platform: xla.Platform) -> xla.Executable:
    """Compile a module of one dot with a configuration.

    Raises:
        NotTritonError: XLA compiled the module without Triton.
        RuntimeError: the compiler rejects the configuration, for example because memory runs out.
    """
    executable = xla.compile_module(module.SerializeToString(), platform, overrides=configuration.options())
    if _TRITON not in executable.module():
        raise NotTritonError("XLA compiles it without Triton")
    return executable


class _Compiled:
    """The configurations of a product that compile and give the result of the default, which is the first.

    Raises:
        UnsupportedGemmError: the default configuration fails, is too fast or gives NaN, or all others fail.
    """

    def __init__(
        self,
        gemm: Gemm,
        configurations: list[GemmConfiguration],
        values: list[Any],
        platform: xla.Platform,
        before: Callable[[], object],
    ) -> None:
        self._module, self._values, self._platform = gemm.module, values, platform
        self._executables: list[xla.Executable] = []
        self.configurations: list[GemmConfiguration] = []
        self.left_out: dict[str, str] = {}
        self.timer = timer_of(lambda number: self._executables[number].run(values))
        default, *others = configurations
        before()
        try:
            expected = self._add(default)
        except Exception as error:  # the compiler and the backend raise exceptions of many classes
            raise UnsupportedGemmError(f"the default configuration fails: {error_line(error)}") from error
        if has_nan(expected):
            raise UnsupportedGemmError("NaN in its result")
        if min(self.timer(0) for _ in range(3)) < MIN_RUNTIME:  # the first call is slower
            raise TooFastError(f"the default configuration takes less than {MIN_RUNTIME / 1e3:g} us")
        for configuration in others:
            before()
            try:
                self._add(configuration, expected)
            except Exception as error:  # also where memory runs out
                self.left_out[configuration.name] = error_line(error)
        if len(self.configurations) < 2:
            raise UnsupportedGemmError(f"only its default configuration works: {next(iter(self.left_out.values()))}")

    def _add(self, configuration: GemmConfiguration, expected: list[Any] | None = None) -> list[Any]:
        """Compile, run and keep a configuration, and return its outputs, which equal those that are expected."""
        executable = compile_gemm(self._module, configuration, self._platform)
        outputs = [np.asarray(output) for output in executable.run(self._values)]
        if expected is not None and (wrong := difference(expected, outputs)):
            raise WrongOutputError(wrong)
        self._executables.append(executable)
        self.configurations.append(configuration)
        return outputs


def measure_gemm(gemm: Gemm, task: TileTask, heartbeat: Callable[[int], None]) -> MeasuredGemm:
    """Measure configurations of a matrix product; `heartbeat` gets the number of finished rounds.

    Raises:
        UnsupportedGemmError: the product is too fast, has too few configurations, or the default configuration fails.
    """
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(gemm.fingerprint[:8], 16)])
    configurations = draw_configurations(gemm.sizes, task.configurations, rng)
    if 2 * len(configurations) < task.configurations:
        raise UnsupportedGemmError(f"fewer than {task.configurations // 2} configurations")
    values = xla.put(gemm.random_operands(rng), task.platform)
    compiled = _Compiled(gemm, configurations, values, task.platform, lambda: heartbeat(0))
    ready = time.monotonic()
    count = len(compiled.configurations)
    deadline = ready + _SECONDS_PER_CONFIGURATION * count
    times = measure(compiled.timer, count, rng, Rounds.up_to(task.rounds), deadline=deadline, heartbeat=heartbeat)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    return MeasuredGemm(compiled.configurations, times, compiled.left_out, seconds)


def _write(gemm: Gemm, measured: MeasuredGemm, task: TileTask, family: str, load: float) -> dict[str, Any]:
    """Write the npz and the JSON file of a measured product, and return the content of the latter."""
    runtime = record.measurements(measured.times).runtime
    tuning = ModuleTuningData(module=gemm.module, fingerprint=int(gemm.fingerprint[:16], 16))
    for number, (configuration, nanoseconds) in enumerate(zip(measured.configurations, runtime.tolist(), strict=True)):
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
        "compiler": {"options": dict(OPTIONS)},
        "structure": gemm.fingerprint,
        "fingerprint": task.settings,
        "collection": task.collection,
        "seed": task.seed,
        "core": task.core,
        "nodes": graph.graph.nodes,
        "left_out": measured.left_out,
        **record.quality(measured.times),
        **record.conditions(task.platform, load),
        "seconds": measured.seconds,
    }
    record.write(npz, graph, about)
    return about


def _measured_before(task: TileTask) -> dict[str, dict[str, Any]]:
    """Return the JSON content of the products measured earlier with the same settings, by structure."""
    measured = {}
    for npz in sorted(task.folder.glob("*.npz")):
        if record.is_complete(npz, task.settings):
            about = read_json(sidecar_path(npz))
            measured[str(about["structure"])] = about
    return measured


def _about(
    gemm: Gemm, task: TileTask, family: str, before: dict[str, dict[str, Any]], report: Callable[[str, int], None]
) -> dict[str, Any]:
    """Measure a product, unless it was measured before; return its JSON content."""
    if about := before.get(gemm.fingerprint):
        if about["name"] == gemm.name:
            return about
        raise UnsupportedGemmError("measured in another program")
    if gemm.name in task.left_out:
        raise UnsupportedGemmError(task.left_out[gemm.name])
    heartbeat = partial(report, gemm.name)
    heartbeat(0)
    load = os.getloadavg()[0]
    return _write(gemm, measure_gemm(gemm, task, heartbeat), task, family, load)


def measure_gemms(task: TileTask, report: Report) -> dict[str, Any]:
    """Measure the largest products of one program; write the files of each, and return the content of one of all.

    Raises:
        SkippedError: the program does not trace.
    """
    report(Progress("trace"))
    program = task.load()
    gemms = extract_gemms(program.name, HloModuleProto.FromString(program.trace(task.platform).module))
    before = _measured_before(task)
    measured: dict[str, dict[str, Any]] = {}
    left_out = Counter(gemms.left_out)

    def heartbeat(name: str, rounds: int) -> None:
        report(Progress("measure", name, (len(measured) + rounds / task.rounds) / task.kernels))

    too_fast = 0
    for gemm in sorted(gemms.distinct, key=lambda gemm: gemm.sizes.work, reverse=True):
        if len(measured) == task.kernels or too_fast == _MAX_TOO_FAST:
            break
        try:
            measured[gemm.name] = _about(gemm, task, program.family, before, heartbeat)
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


if __name__ == "__main__":
    run_child(TileTask, measure_gemms)
