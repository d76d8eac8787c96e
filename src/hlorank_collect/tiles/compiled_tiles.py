"""Tiles as C code: compiled by gcc, called through ctypes, and timed in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.hlo.hlo_pb2 import ShapeProto
from hlorank_collect.tiles.c_operations import PRELUDE
from hlorank_collect.tiles.kernel import Body, Kind, dtype_of
from hlorank_collect.tiles.nest import Nest, Tile

FLAGS = (
    "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp-simd", "-std=gnu11", "-w", "-shared", "-fPIC",
)  # fmt: skip
"""Flags of gcc next to the optimization level."""
_ALIGNMENT = 64
_TIMING = """
#include <limits.h>
#include <time.h>

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

void run_tile(int tile, const void *const *in, void *out) { tiles[tile](in, out); }

static long time_once(int tile, const void *const *in, void *out) {
  const long start = now();
  tiles[tile](in, out);
  return now() - start;
}

/* One warm-up run, then the fastest of two or more runs of at least `min_timed` ns in total; a first run that is so
   slow that caches hardly matter counts itself. */
long time_tile(int tile, const void *const *in, void *out, long min_timed) {
  long best = time_once(tile, in, out), sum = 0;
  if (best > 10000000) return best;
  best = LONG_MAX;
  for (int i = 0; i < 2 || (sum < min_timed && i < 100); ++i) {
    const long taken = time_once(tile, in, out);
    sum += taken;
    if (taken < best) best = taken;
  }
  return best;
}
"""


def optimization(kind: Kind) -> str:
    """Return the optimization level of a kernel: -O3 makes convolutions ten times faster."""
    return "-O3" if kind == "convolution" else "-O2"


def gcc_version() -> str:
    """Return the first line of `gcc --version`.

    Raises:
        ConfigError: gcc is missing.
    """
    if shutil.which("gcc") is None:
        raise ConfigError("measuring tiles needs gcc, which is not on PATH: install it (Debian: apt install gcc)")
    out = subprocess.run(["gcc", "--version"], check=True, capture_output=True, text=True).stdout  # noqa: S607 (the user's gcc)
    return out.splitlines()[0]


def source(nest: Nest, tiles: Sequence[Tile]) -> str:
    """Return one C file with a function for each tile."""
    functions = "\n".join(nest.function(f"tile_{number}", tile) for number, tile in enumerate(tiles))
    names = ", ".join(f"tile_{number}" for number in range(len(tiles)))
    table = f"static void (*const tiles[])(const void *const *, void *) = {{{names}}};\n"
    return PRELUDE + nest.constants() + functions + table + _TIMING


def _aligned(shape: ShapeProto) -> NDArray[Any]:
    """Return an array for a shape in its memory order, major dimension first, aligned to a cache line."""
    dtype = dtype_of(shape)
    dims = [shape.dimensions[dim] for dim in reversed(shape.layout.minor_to_major)]
    size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(dims)


class CompiledTiles:
    """Compiled tiles of one kernel, with its arrays.

    Args:
        nest: the loops of the kernel.
        body: the kernel.
        tiles: the tiles to compile.
        values: values of the parameters, logical arrays.
        folder: the folder of the C file and the library.
        timeout: time limit of gcc in seconds.

    Raises:
        ConfigError: gcc is missing.
        UnsupportedKernelError: the kernel cannot be written in C.
        subprocess.SubprocessError: gcc fails or exceeds the time limit.
    """

    def __init__(
        self, nest: Nest, body: Body, tiles: Sequence[Tile], values: Sequence[NDArray[Any]], folder: Path,
        timeout: float,
    ) -> None:  # fmt: skip
        gcc_version()
        file, library = folder / "tiles.c", folder / "tiles.so"
        file.write_text(source(nest, tiles))
        command = ["gcc", optimization(body.kind), *FLAGS, str(file), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=timeout)  # noqa: S603 (our own arguments)
        self._library = ctypes.CDLL(str(library))
        self._library.time_tile.restype = ctypes.c_long
        self._inputs = []
        for parameter, value in zip(body.parameters, values, strict=True):
            array = _aligned(parameter.shape)
            array[...] = value.transpose(tuple(reversed(parameter.shape.layout.minor_to_major)))
            self._inputs.append(array)
        self._shape = body.instructions[body.root].shape
        self._output = _aligned(self._shape)
        self._pointers = (ctypes.c_void_p * max(len(self._inputs), 1))(*(one.ctypes.data for one in self._inputs))

    def run(self, number: int) -> NDArray[Any]:
        """Run a tile and return its result, a logical array."""
        # Elements that this tile does not write must not keep the results of the previous tile.
        self._output.reshape(-1).view(np.uint8)[...] = 0xAA
        self._library.run_tile(number, self._pointers, ctypes.c_void_p(self._output.ctypes.data))
        order = tuple(reversed(self._shape.layout.minor_to_major))
        return self._output.transpose(np.argsort(order)).copy() if order else self._output.copy()

    def time(self, number: int, min_timed: int = 0) -> float:
        """Return the runtime of a tile in ns.

        Args:
            number: the number of the tile.
            min_timed: the fastest of two or more runs is returned that take at least so many ns in total; a slow tile
                is run once.
        """
        output = ctypes.c_void_p(self._output.ctypes.data)
        return float(self._library.time_tile(number, self._pointers, output, ctypes.c_long(min_timed)))
