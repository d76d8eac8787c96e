"""Child process that measures the tiles of the kernels of one program."""

from __future__ import annotations

import logging
import math
import os
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hlorank.data.collection import sidecar_path
from hlorank.files import DataError, read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.child_process import run_child
from hlorank_collect.program import SkippedError, one_line
from hlorank_collect.task import Progress, Report
from hlorank_collect.tiles.kernel import KINDS, Harvest, Kernel, Kind, UnsupportedKernelError, harvest
from hlorank_collect.tiles.measure_tiles import MeasuredTiles, TooFastError, measure_tiles, write_kernel
from hlorank_collect.tiles.nest import Nest
from hlorank_collect.tiles.tile_task import TileTask
from hlorank_collect.tiles.triton.gemm import Gemm, harvest_gemms
from hlorank_collect.tiles.triton.measure_gemm import measure_gemm

_MAX_TOO_FAST = 6  # kernels are tried from large to small: after so many that are too fast, the others are too
_Measure = Callable[[TileTask, Callable[[int], None]], MeasuredTiles]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Platform:
    """Functions that find and measure the kernels of a backend.

    Attributes:
        module: maps the module before any pass to the one that holds the kernels.
        harvest: finds the kernels of such a module.
        prepare: returns the work of a kernel, in a unit that is comparable within a kind, and the function that
            measures it.
    """

    module: Callable[[bytes], bytes]
    harvest: Callable[[str, HloModuleProto], Harvest]
    prepare: Callable[[Kernel], tuple[int, _Measure]]


def _loop_nest(kernel: Kernel) -> tuple[int, _Measure]:
    nest = Nest(kernel.body)
    work = math.prod((*nest.output, *nest.reduced)) * len(kernel.body.instructions)
    return work, partial(measure_tiles, kernel, nest)


def _gemm(kernel: Kernel) -> tuple[int, _Measure]:
    gemm = Gemm.of(kernel.body)
    return gemm.work, partial(measure_gemm, kernel, gemm)


def _optimized(module: bytes) -> bytes:
    return xla.compile_module(module, library_fusions=False).module()


_PLATFORMS: dict[xla.Platform, _Platform] = {
    "cpu": _Platform(_optimized, harvest, _loop_nest),
    "gpu": _Platform(lambda module: module, harvest_gemms, _gemm),
}


def _harvest(task: TileTask) -> tuple[str, str, Harvest]:
    """Return name and family of the program, and its kernels."""
    program, platform = task.load(), _PLATFORMS[task.platform]
    traced = program.trace(task.platform)
    try:
        module = platform.module(traced.module)
    except Exception as error:  # the compiler raises many classes
        raise SkippedError(f"it does not compile: {one_line(error)}") from error
    return program.name, program.family, platform.harvest(program.name, HloModuleProto.FromString(module))


def _measured_before(task: TileTask) -> dict[str, dict[str, Any]]:
    """Return the JSON content of the kernels measured earlier with the same settings, by structure."""
    found = {}
    for npz in sorted(task.folder.glob("*.npz")):
        try:
            about = read_json(sidecar_path(npz))
        except DataError as error:
            _log.warning("%s", error)
            continue
        if about.get("fingerprint") == task.settings:
            found[str(about["structure"])] = about
    return found


class _Kernels:
    """Supported kernels of one program, and their results.

    Attributes:
        measured: JSON content of the measured kernels, by name.
        left_out: number of kernels that were not measured, by reason.
    """

    def __init__(self, task: TileTask, report: Report, family: str, found: Harvest) -> None:
        self.measured: dict[str, dict[str, Any]] = {}
        self.left_out = Counter(found.left_out)
        self._task, self._report, self._family = task, report, family
        self._before = _measured_before(task)
        self._waiting: dict[Kind, list[tuple[int, Kernel, _Measure]]] = {kind: [] for kind in KINDS}
        for kernel in found.kernels:
            try:
                work, measure = _PLATFORMS[task.platform].prepare(kernel)
            except UnsupportedKernelError as error:
                self.left_out[str(error)] += 1
                continue
            self._waiting[kernel.body.kind].append((work, kernel, measure))
        for kernels in self._waiting.values():
            kernels.sort(key=lambda one: one[0])

    def measure_next(self, kind: Kind) -> bool:
        """Measure the largest waiting kernel of a kind that can be measured; return False if there is none."""
        too_fast = 0
        while self._waiting[kind] and too_fast < _MAX_TOO_FAST:
            _, kernel, measure = self._waiting[kind].pop()
            try:
                self.measured[kernel.name] = self._about(kernel, measure)
            except UnsupportedKernelError as error:
                self.left_out[str(error)] += 1
                too_fast += isinstance(error, TooFastError)
            else:
                return True
        return False

    def _about(self, kernel: Kernel, measure: _Measure) -> dict[str, Any]:
        """Measure a kernel, unless it was measured before; return its JSON content."""
        if about := self._before.get(kernel.fingerprint):
            if about["name"] == kernel.name:
                return about
            raise UnsupportedKernelError("measured in another program")
        if kernel.name in self._task.left_out:
            raise UnsupportedKernelError(self._task.left_out[kernel.name])

        def report(rounds: int) -> None:
            share = (len(self.measured) + rounds / self._task.rounds) / self._task.kernels
            self._report(Progress("measure", kernel.name, share))

        report(0)
        load = os.getloadavg()[0]
        measured = measure(self._task, report)
        about = {"program": self._task.program, "family": self._family}
        return write_kernel(
            kernel, measured, self._task, {**about, "load": {"before": load, "after": os.getloadavg()[0]}}
        )


def measure_kernels(task: TileTask, report: Report) -> dict[str, Any]:
    """Measure kernels of one program, the kinds in turn; write the files of each kernel and one JSON file of all.

    Args:
        task: the program and the settings.
        report: called before each step that may take long.

    Returns:
        The content of the JSON file of the program.

    Raises:
        SkippedError: the program does not compile.
        ConfigError: `task.program` does not exist, or gcc is missing and `task.platform` is cpu.
    """
    report(Progress("trace"))
    name, family, found = _harvest(task)
    kernels = _Kernels(task, report, family, found)
    turn = deque(KINDS)
    turn.rotate(zlib.crc32(name.encode()) % len(KINDS))  # each kind is first in about the same number of programs
    while turn and len(kernels.measured) < task.kernels:
        if kernels.measure_next(turn[0]):
            turn.rotate(-1)
        else:
            turn.popleft()
    keys = ("kind", "measured", "rounds", "split_half_tau", "noise_ceiling", "runtime_ns", "seconds")
    about = {
        "name": name,
        "family": family,
        "fingerprint": task.fingerprint,
        "harvested": dict(Counter(kernel.body.kind for kernel in found.kernels)),
        "repeated": found.repeated,
        "left_out": dict(kernels.left_out),
        "kernels": {one: {key: about[key] for key in keys} for one, about in kernels.measured.items()},
    }
    write_json(task.summary(name), about)
    return about


if __name__ == "__main__":
    run_child(TileTask, measure_kernels)
