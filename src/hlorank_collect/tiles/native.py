"""C code on this machine: compiled by gcc, called through ctypes, timed from within."""

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
from hlorank_collect.tiles.elements import PRELUDE
from hlorank_collect.tiles.kernel import Body, Kind, dtype_of
from hlorank_collect.tiles.nest import Nest, Tile

FLAGS = (
    "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp-simd", "-std=gnu11", "-w", "-shared", "-fPIC",
)  # fmt: skip
"""What gcc gets beside the optimization level."""
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

/* A warm run, then the fastest of two or more that take `enough` ns together; a run so slow that caches mean little
   counts at once. */
long time_tile(int tile, const void *const *in, void *out, long enough) {
  long best = time_once(tile, in, out), sum = 0;
  if (best > 10000000) return best;
  best = LONG_MAX;
  for (int i = 0; i < 2 || (sum < enough && i < 100); ++i) {
    const long taken = time_once(tile, in, out);
    sum += taken;
    if (taken < best) best = taken;
  }
  return best;
}
"""


def optimization(kind: Kind) -> str:
    """The optimization level of a kernel: convolutions get ten times faster by -O3."""
    return "-O3" if kind == "convolution" else "-O2"


def gcc_version() -> str:
    """What `gcc --version` calls itself.

    Raises:
        ConfigError: there is no gcc.
    """
    if shutil.which("gcc") is None:
        raise ConfigError("collecting tiles needs gcc, and there is none on PATH: install it (Debian: apt install gcc)")
    out = subprocess.run(["gcc", "--version"], check=True, capture_output=True, text=True).stdout  # noqa: S607 (whichever gcc the user has)
    return out.splitlines()[0]


def source(nest: Nest, tiles: Sequence[Tile]) -> str:
    """One C file with a function for each tile."""
    functions = "\n".join(nest.function(f"tile_{number}", tile) for number, tile in enumerate(tiles))
    names = ", ".join(f"tile_{number}" for number in range(len(tiles)))
    table = f"static void (*const tiles[])(const void *const *, void *) = {{{names}}};\n"
    return PRELUDE + nest.constants() + functions + table + _TIMING


def _aligned(shape: ShapeProto) -> NDArray[Any]:
    """An array for a shape as it lies in memory, major dimension first, on a cache line."""
    dtype = dtype_of(shape)
    dims = [shape.dimensions[dim] for dim in reversed(shape.layout.minor_to_major)]
    size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(dims)


class Tiles:
    """The compiled tiles of one kernel, with its arrays.

    Args:
        body: the kernel.
        tiles: what to compile.
        values: the parameters' values, logical arrays.
        folder: for the C file and the library.

    Raises:
        ConfigError: there is no gcc.
        UnsupportedKernelError: the kernel can't be written.
        subprocess.SubprocessError: gcc fails or takes longer than `timeout` seconds.
    """

    def __init__(
        self, nest: Nest, body: Body, tiles: Sequence[Tile], values: Sequence[NDArray[Any]], folder: Path,
        timeout: float,
    ) -> None:  # fmt: skip
        gcc_version()
        file, library = folder / "tiles.c", folder / "tiles.so"
        file.write_text(source(nest, tiles))
        command = ["gcc", optimization(body.kind), *FLAGS, str(file), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=timeout)  # noqa: S603 (arguments of our own)
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
        """The result of a tile, a logical array."""
        self._output.reshape(-1).view(np.uint8)[...] = (
            0xAA  # what a tile does not write is no result of the tile before
        )
        self._library.run_tile(number, self._pointers, ctypes.c_void_p(self._output.ctypes.data))
        order = tuple(reversed(self._shape.layout.minor_to_major))
        return self._output.transpose(np.argsort(order)).copy() if order else self._output.copy()

    def time(self, number: int, enough: int = 0) -> float:
        """The ns of a tile: the fastest of two or more runs that take `enough` ns together, or of one that is slow."""
        output = ctypes.c_void_p(self._output.ctypes.data)
        return float(self._library.time_tile(number, self._pointers, output, ctypes.c_long(enough)))
