"""Measurement of one matrix product: Triton GEMM configurations are drawn, compiled, compared, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.program import one_line
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.measure_tiles import MeasuredTiles, TooFastError
from hlorank_collect.tiles.tile_task import TileTask
from hlorank_collect.tiles.triton.configuration import OPTIONS, GemmConfiguration, draw_configurations
from hlorank_collect.tiles.triton.gemm import Gemm, random_operands
from hlorank_collect.timing import Rounds, measure, timer_of
from hlorank_collect.verify import WrongOutputError, difference, has_nan

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


class NotTritonError(RuntimeError):
    """A product that XLA compiled without Triton, so that the configuration had no effect."""


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
    """The configurations of a product that compile and give the result of the default one, which is the first.

    Raises:
        UnsupportedKernelError: the default configuration fails, is too fast or gives NaN, or all other ones fail.
    """

    def __init__(
        self,
        kernel: Kernel,
        configurations: list[GemmConfiguration],
        values: list[Any],
        platform: xla.Platform,
        before: Callable[[], object],
    ) -> None:
        self._module, self._values, self._platform = kernel.module, values, platform
        self._executables: list[xla.Executable] = []
        self.configurations: list[GemmConfiguration] = []
        self.left_out: dict[str, str] = {}
        self.timer = timer_of(lambda number: self._executables[number].run(values))
        default, *others = configurations
        before()
        try:
            self._expected = self._add(default)
        except Exception as error:  # the compiler and the backend raise exceptions of many classes
            raise UnsupportedKernelError(f"the default configuration fails: {one_line(error)}") from error
        if has_nan(self._expected):
            raise UnsupportedKernelError("NaN in its result")
        if min(self.timer(0) for _ in range(3)) < MIN_RUNTIME:  # the first call is slower
            raise TooFastError(f"the default configuration takes less than {MIN_RUNTIME / 1e3:g} us")
        for configuration in others:
            before()
            try:
                self._add(configuration, self._expected)
            except Exception as error:  # also where memory runs out
                self.left_out[configuration.name] = one_line(error)
        if len(self.configurations) < 2:
            raise UnsupportedKernelError(f"only its default configuration works: {next(iter(self.left_out.values()))}")

    def _add(self, configuration: GemmConfiguration, expected: list[Any] | None = None) -> list[Any]:
        """Compile, run and keep a configuration, and return its outputs.

        Raises:
            WrongOutputError: the outputs differ from the expected ones.
        """
        executable = compile_gemm(self._module, configuration, self._platform)
        outputs = [np.asarray(output) for output in executable.run(self._values)]
        if expected is not None and (wrong := difference(expected, outputs)):
            raise WrongOutputError(wrong)
        self._executables.append(executable)
        self.configurations.append(configuration)
        return outputs


def measure_gemm(kernel: Kernel, gemm: Gemm, task: TileTask, heartbeat: Callable[[int], None]) -> MeasuredTiles:
    """Measure configurations of a matrix product in this process.

    Args:
        kernel: a dot.
        gemm: its sizes.
        task: the settings.
        heartbeat: called before each compilation and after each round, with the number of finished rounds.

    Raises:
        UnsupportedKernelError: the product is too fast, has too few configurations, or the default configuration fails.
    """
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(kernel.fingerprint[:8], 16)])
    configurations = draw_configurations(gemm, task.configurations, rng)
    if 2 * len(configurations) < task.configurations:
        raise UnsupportedKernelError(f"fewer than {task.configurations // 2} configurations")
    values = xla.put(random_operands(kernel.body, rng), task.platform)
    compiled = _Compiled(kernel, configurations, values, task.platform, lambda: heartbeat(0))
    ready = time.monotonic()
    times = measure(
        compiled.timer,
        len(compiled.configurations),
        rng,
        Rounds(min=min(Rounds.min, task.rounds), max=task.rounds),
        deadline=ready + _SECONDS_PER_CONFIGURATION * len(compiled.configurations),
        heartbeat=heartbeat,
    )
    return MeasuredTiles(
        [configuration.bounds(gemm) for configuration in compiled.configurations],
        times,
        {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)},
        {
            "what": WHAT,
            "gemm": asdict(gemm),
            "device": xla.device_name(task.platform),
            "compiler": {"options": dict(OPTIONS)},
            "left_out": compiled.left_out,
        },
    )
