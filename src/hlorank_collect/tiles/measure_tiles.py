"""Measurement of one kernel: tiles are drawn, compiled, checked against XLA, timed, and written as an npz file."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import ModuleTuningData, TileSizeConfig
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import machine, record
from hlorank_collect.tiles.compiled_tiles import FLAGS, CompiledTiles, gcc_version, optimization
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.nest import Nest, Tile
from hlorank_collect.tiles.reference import evaluate, random_inputs
from hlorank_collect.tiles.tile_sizes import default_tile, draw_tiles
from hlorank_collect.tiles.tile_task import TileTask
from hlorank_collect.timing import Float64, Rounds, measure
from hlorank_collect.verify import difference, has_nan

WHAT = (
    "Tiles of C loop nests that compute XLA's fusions, dots, convolutions and reductions, measured on a CPU: output "
    "tiles as output bounds, tiles of the reduced dimensions as kernel bounds. Not a choice that XLA:CPU offers, and "
    "not TPU data."
)
"""Description in the JSON file of each kernel."""
MIN_RUNTIME, MAX_RUNTIME = 20e3, 10e6
"""Kernels are measured if the default tile takes between these times, in ns."""
_MIN_TIMED = 100_000  # ns of the runs of one measurement in total: short runs are repeated
_TRIALS = 3  # runs of the default tile; the fastest decides whether the kernel is measured
_SECONDS_PER_TILE = 0.25  # time limit of measuring; no round is started after it
_GCC_SECONDS = 120.0


class TooFastError(UnsupportedKernelError):
    """A kernel whose runtime is too short for a precise measurement."""


@dataclass(frozen=True, eq=False)
class MeasuredTiles:
    """Tiles of a kernel with their times.

    Attributes:
        tiles: tiles whose result is right, the default first.
        times: (rounds, tiles) float64, nanoseconds.
        seconds: duration of compiling and checking, and of measuring.
        about: description, compiler and left-out tiles, for the JSON file.
    """

    tiles: list[TileSizeConfig]
    times: Float64
    seconds: dict[str, float]
    about: dict[str, Any]


def _compiled(kernel: Kernel, nest: Nest, tiles: Sequence[Tile], values: Sequence[Any], folder: Path) -> CompiledTiles:
    try:
        return CompiledTiles(nest, kernel.body, tiles, values, folder, _GCC_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnsupportedKernelError(f"gcc takes more than {error.timeout:g} s") from error


def measure_tiles(kernel: Kernel, nest: Nest, task: TileTask, heartbeat: Callable[[int], None]) -> MeasuredTiles:
    """Measure tiles of a kernel in this process.

    Args:
        kernel: the kernel.
        nest: its loops.
        task: the settings.
        heartbeat: called after each round with the number of finished rounds.

    Raises:
        UnsupportedKernelError: the kernel is too fast or too slow, has too few tiles, or the default tile or XLA fails
            to compute its result.
        hlorank.config.ConfigError: gcc is missing.
    """
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(kernel.fingerprint[:8], 16)])
    values = random_inputs(kernel.body, rng)
    tiles = draw_tiles(nest, task.configurations, rng)
    if 2 * len(tiles) < task.configurations:
        raise UnsupportedKernelError(f"fewer than {task.configurations // 2} tiles")
    with tempfile.TemporaryDirectory(prefix="hlorank-tiles-") as folder:
        single = _compiled(kernel, nest, [default_tile(nest)], values, Path(folder))
        # Another process may slow down one of the trials.
        default = min(single.time(0, min_timed=_MIN_TIMED) for _ in range(_TRIALS))
        if default < MIN_RUNTIME:
            raise TooFastError(f"the default tile takes less than {MIN_RUNTIME / 1e3:g} us")
        if default > MAX_RUNTIME:
            raise UnsupportedKernelError(f"the default tile takes more than {MAX_RUNTIME / 1e6:g} ms")
    try:
        expected = evaluate(kernel.body, values)
    except RuntimeError as error:
        raise UnsupportedKernelError("XLA rejects it") from error
    if has_nan([expected]):
        raise UnsupportedKernelError("NaN in its result")
    with tempfile.TemporaryDirectory(prefix="hlorank-tiles-") as folder:
        compiled = _compiled(kernel, nest, tiles, values, Path(folder))
        right = [number for number in range(len(tiles)) if difference([expected], [compiled.run(number)]) is None]
        if 0 not in right:
            raise UnsupportedKernelError("the result of the default tile differs from XLA's")
        ready = time.monotonic()
        times = measure(
            lambda number: compiled.time(right[number], min_timed=_MIN_TIMED),
            len(right),
            rng,
            Rounds(min=min(Rounds.min, task.rounds), max=task.rounds),
            deadline=ready + _SECONDS_PER_TILE * len(right),
            heartbeat=heartbeat,
        )
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    flags = [optimization(kernel.body.kind), *FLAGS]
    return MeasuredTiles(
        [TileSizeConfig(output_bounds=tiles[one].output, kernel_bounds=tiles[one].reduction) for one in right],
        times,
        seconds,
        {
            "what": WHAT,
            "compiler": {"gcc": gcc_version(), "flags": flags},
            "left_out": len(tiles) - len(right),
        },
    )


def write_kernel(kernel: Kernel, measured: MeasuredTiles, task: TileTask, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the npz and the JSON file of a measured kernel.

    Args:
        kernel: the kernel.
        measured: its tiles and times.
        task: the settings.
        about: further content of the JSON file.

    Returns:
        The content of the JSON file.
    """
    nanoseconds = record.measurements(measured.times).runtime
    tuning = ModuleTuningData(module=kernel.module, fingerprint=int(kernel.fingerprint[:16], 16))
    for number, (tile, runtime) in enumerate(zip(measured.tiles, nanoseconds.tolist(), strict=True)):
        run = tuning.runs.add(is_default=number == 0)
        run.op_config.tile_size_config.CopyFrom(tile)
        run.profile.compute_time_ns = runtime
    npz = task.npz(kernel.name)
    graph, _ = featurize(Record(kernel.name, npz, "", kernel.module, tuning), "tile")
    written = {
        "name": kernel.name,
        **about,
        **measured.about,
        "kind": kernel.body.kind,
        "structure": kernel.fingerprint,
        "fingerprint": task.settings,
        "collection": task.collection,
        "seed": task.seed,
        "core": task.core,
        **machine.description(),
        **record.quality(measured.times),
        "nodes": graph.graph.nodes,
        "measured": len(measured.tiles),
        "default": 0,
        "runtime_ns": {
            "default": int(nanoseconds[0]),
            "best": int(nanoseconds.min()),
            "worst": int(nanoseconds.max()),
        },
        "seconds": measured.seconds,
    }
    record.write(npz, graph, written)
    return written
