"""One matrix product: its Triton GEMM configurations drawn, compiled, checked against each other, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.layouts.compiled_layouts import WrongOutputError, reason
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.measure_kernel import MeasuredTiles, TooFastError
from hlorank_collect.tiles.tile_task import TileTask
from hlorank_collect.tiles.triton.configuration import OPTIONS, GemmConfiguration, draw_configurations
from hlorank_collect.tiles.triton.gemm import Gemm, random_operands
from hlorank_collect.timing import Rounds, measure, timer_of
from hlorank_collect.verify import difference, has_nan

WHAT = (
    "Triton GEMM configurations that XLA's GPU compiler takes for single matrix products, measured on a GPU: block_m "
    "and block_n as output bounds, block_k as kernel bounds; split_k, num_stages and num_warps as input bounds. Not "
    "TPU data."
)
FASTEST = 100e3
"""The runtime of a default configuration, in ns, from which on products are measured: the time includes the launch."""
_SECONDS_PER_CONFIGURATION = 0.5  # of measuring; rounds that do not fit are left
_TRITON = b"__triton"  # how the kinds of all fusions begin that XLA compiles with Triton


class NotTritonError(RuntimeError):
    """XLA compiled a product without Triton, so that its configuration means nothing."""


def compile_gemm(module: HloModuleProto, configuration: GemmConfiguration, platform: xla.Platform) -> xla.Executable:
    """Compiles a module of one dot with a configuration.

    Raises:
        NotTritonError: XLA took something else for it.
        RuntimeError: the compiler refuses, as where a configuration needs more memory than there is.
    """
    executable = xla.compile_module(module.SerializeToString(), platform, overrides=configuration.options())
    if _TRITON not in executable.module():
        raise NotTritonError("XLA compiles it without Triton")
    return executable


class _Compiled:
    """The configurations of a product that compile and compute what the default one, which is the first, does.

    Raises:
        UnsupportedKernelError: the default configuration fails, is too fast, or its result holds NaN; or it is the
            only one left.
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
        except Exception as error:  # whatever the compiler or the backend raises
            raise UnsupportedKernelError(f"the default configuration fails: {reason(error)}") from error
        if has_nan(self._expected):
            raise UnsupportedKernelError("NaN in its result")
        if self.timer(0) < FASTEST:
            raise TooFastError(f"the default configuration takes less than {FASTEST / 1e3:g} us")
        for configuration in others:
            before()
            try:
                self._add(configuration, self._expected)
            except Exception as error:  # memory that ran out included
                self.left_out[configuration.name] = reason(error)
        if len(self.configurations) < 2:
            raise UnsupportedKernelError(f"only its default configuration works: {next(iter(self.left_out.values()))}")

    def _add(self, configuration: GemmConfiguration, expected: list[Any] | None = None) -> list[Any]:
        """Compiles and runs a configuration, keeps it, and returns its outputs.

        Raises:
            WrongOutputError: they are not what was expected.
        """
        executable = compile_gemm(self._module, configuration, self._platform)
        outputs = [np.asarray(output) for output in executable.run(self._values)]
        if expected is not None and (wrong := difference(expected, outputs)):
            raise WrongOutputError(wrong)
        self._executables.append(executable)
        self.configurations.append(configuration)
        return outputs


def measure_gemm(kernel: Kernel, gemm: Gemm, task: TileTask, heartbeat: Callable[[int], None]) -> MeasuredTiles:
    """Measures configurations of a matrix product in this process.

    Args:
        kernel: a dot.
        gemm: its sizes.
        task: how.
        heartbeat: called with the number of rounds done, before each compilation and after each round.

    Raises:
        UnsupportedKernelError: the product is too fast, has too few configurations, or its default one fails.
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
        Rounds(least=min(Rounds.least, task.rounds), most=task.rounds),
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
