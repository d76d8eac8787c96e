"""One kernel: its tiles drawn, compiled, checked against XLA, timed, and written as a file of the official schema."""

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
from hlorank_collect.layouts import record
from hlorank_collect.tiles import native
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.nest import Nest, Tile
from hlorank_collect.tiles.reference import evaluate, inputs
from hlorank_collect.tiles.tile_sizes import default_tile, draw_tiles
from hlorank_collect.tiles.tile_task import TileTask
from hlorank_collect.timing import Float64, Rounds, measure
from hlorank_collect.verify import difference, has_nan

WHAT = (
    "Tiles of C loop nests that compute XLA's fusions, dots, convolutions and reductions, measured on a CPU: output "
    "tiles as output bounds, tiles of the reduced dimensions as kernel bounds. Not a choice that XLA:CPU offers, and "
    "not TPU data."
)
FASTEST, SLOWEST = 20e3, 10e6
"""The runtimes of default tiles, in ns, between which kernels are measured."""
_ENOUGH = 100_000  # ns that the runs of one measurement take together: short ones are repeated
_TRIALS = 3  # of the default tile, the fastest of which decides whether the kernel is measured
_SECONDS_PER_TILE = 0.25  # of measuring; rounds that do not fit are left
_GCC_SECONDS = 120.0


class TooFastError(UnsupportedKernelError):
    """A kernel that is too fast to be measured well."""


@dataclass(frozen=True, eq=False)
class MeasuredTiles:
    """Tiles of a kernel with their times.

    Attributes:
        tiles: those that compute what they should, the default first.
        times: (rounds, tiles) float64, nanoseconds.
        seconds: of compiling and checking, and of measuring.
        about: what they are, how they were compiled, and what was left out, as the JSON file has it.
    """

    tiles: list[TileSizeConfig]
    times: Float64
    seconds: dict[str, float]
    about: dict[str, Any]


def _compiled(kernel: Kernel, nest: Nest, tiles: Sequence[Tile], values: Sequence[Any], folder: Path) -> native.Tiles:
    try:
        return native.Tiles(nest, kernel.body, tiles, values, folder, _GCC_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnsupportedKernelError(f"gcc takes more than {error.timeout:g} s") from error


def measure_tiles(kernel: Kernel, nest: Nest, task: TileTask, heartbeat: Callable[[int], None]) -> MeasuredTiles:
    """Measures the tiles of a kernel in this process.

    Args:
        kernel: which.
        nest: its loops.
        task: how.
        heartbeat: called with the number of rounds done, after each.

    Raises:
        UnsupportedKernelError: the kernel is too fast or too slow, has too few tiles, or the default tile or XLA fails
            on it.
        hlorank.config.ConfigError: there is no gcc.
    """
    start = time.monotonic()
    rng = np.random.default_rng([task.seed, int(kernel.fingerprint[:8], 16)])
    values = inputs(kernel.body, rng)
    tiles = draw_tiles(nest, task.configurations, rng)
    if 2 * len(tiles) < task.configurations:
        raise UnsupportedKernelError(f"fewer than {task.configurations // 2} tiles")
    with tempfile.TemporaryDirectory(prefix="hlorank-tiles-") as folder:
        alone = _compiled(kernel, nest, [default_tile(nest)], values, Path(folder))
        # One reading may hold the time of another process.
        default = min(alone.time(0, enough=_ENOUGH) for _ in range(_TRIALS))
        if default < FASTEST:
            raise TooFastError(f"the default tile takes less than {FASTEST / 1e3:g} us")
        if default > SLOWEST:
            raise UnsupportedKernelError(f"the default tile takes more than {SLOWEST / 1e6:g} ms")
    try:
        expected = evaluate(kernel.body, values)
    except RuntimeError as error:
        raise UnsupportedKernelError("XLA refuses it") from error
    if has_nan([expected]):
        raise UnsupportedKernelError("NaN in its result")
    with tempfile.TemporaryDirectory(prefix="hlorank-tiles-") as folder:
        compiled = _compiled(kernel, nest, tiles, values, Path(folder))
        right = [number for number in range(len(tiles)) if difference([expected], [compiled.run(number)]) is None]
        if 0 not in right:
            raise UnsupportedKernelError("the default tile computes something else than XLA")
        ready = time.monotonic()
        times = measure(
            lambda number: compiled.time(right[number], enough=_ENOUGH),
            len(right),
            rng,
            Rounds(least=min(Rounds.least, task.rounds), most=task.rounds),
            deadline=ready + _SECONDS_PER_TILE * len(right),
            heartbeat=heartbeat,
        )
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    flags = [native.optimization(kernel.body.kind), *native.FLAGS]
    return MeasuredTiles(
        [TileSizeConfig(output_bounds=tiles[one].output, kernel_bounds=tiles[one].reduction) for one in right],
        times,
        seconds,
        {
            "what": WHAT,
            "compiler": {"gcc": native.gcc_version(), "flags": flags},
            "left_out": len(tiles) - len(right),
        },
    )


def write_kernel(kernel: Kernel, measured: MeasuredTiles, task: TileTask, about: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the npz and the JSON file of a measured kernel.

    Args:
        kernel: which.
        measured: its tiles and times.
        task: how it was measured.
        about: what else the JSON file holds.

    Returns:
        what the JSON file holds.
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
        **record.environment(),
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
