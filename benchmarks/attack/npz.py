"""Attack on the reader of npz files: bombs, wrong headers, odd names and mutations.

An accepted file whose arrays differ from those that numpy reads has wrong content.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib import format as npy

from hlorank.data.collection import read_graph, write_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements, TileConfigurations
from hlorank.data.graph import Graph

from .cases import NAMES, Case, WrongContentError, mutate, write

BOMBS: dict[str, tuple[str, tuple[int, ...]]] = {
    "node_feat": ("<f4", (1_900_000, 140)),
    "node_opcode": ("|u1", (10**9,)),
    "edge_index": ("<i8", (60_000_000, 2)),
    "node_splits": ("<i8", (1, 130_000_000)),
    "node_config_ids": ("<i8", (130_000_000,)),
    "node_config_feat": ("<f4", (3_500_000, 4, 18)),
    "config_runtime": ("<i8", (130_000_000,)),
    "more": ("<i8", (130_000_000,)),
}
"""Dtypes and shapes of arrays of zeros, a few MB when deflated."""
SHAPES = (
    "(True, N)", "(-1, N)", "(0, N)", "(10**9, N)", "(99999999999999999999, N)", "(N, 0, 5)", "(NL,)", "N", "(1,) * N",
    "(" + "1," * 4000 + "N)",
)  # fmt: skip
DTYPES = ("'|O'", "'<f0'", "[('a', '<f4'), ('b', 'O')]", "'<M8[s]'", r"'\\d'")
HEADERS = (
    *(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}" for shape in SHAPES),
    *(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': (N,), }}" for dtype in DTYPES),
    "{'descr': '<f4', 'fortran_order': 7, 'shape': (N,), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (N, 1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (N,), 'x': '\x1b[31m\n\x00'}",
    "(" * 3000 + "N",
)
"""Wrong headers of arrays; N is the number of values of four bytes."""


def npz_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield bombs, wrong headers and odd names, then unlimited mutated files."""
    originals = [graph_bytes(kind, seed) for kind in ("layout", "tile") for seed in (0, 1)]
    for key, (dtype, shape) in BOMBS.items():
        yield Case(f"npz bomb {key}", partial(_write_bomb, originals[0], key, dtype, shape), read_npz)
    with zipfile.ZipFile(io.BytesIO(originals[0])) as file:
        members = file.namelist()
    for number, header in enumerate(HEADERS):
        for member in members:
            data = rezipped(originals[0], partial(_with_header, member, header))
            yield Case(f"npz header {number} of {member}", write("graph.npz", data), read_npz)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        data = rezipped(originals[0], compression=compression)
        yield Case(f"npz compression {compression}", write("graph.npz", data), read_npz)
    for name in NAMES:
        yield Case(f"npz named {name!r}", write(f"{name}.npz", mutate(originals[0], random)), read_npz)
    for number, data in enumerate(cycle(originals)):
        if number % 3 == 2:  # changed below the checksums
            victim = members[int(random.integers(len(members)))]
            data = rezipped(data, partial(_with_mutation, victim, random))
        else:
            data = mutate(data, random)
        yield Case(f"npz {number}", write("graph.npz", data), read_npz, mutated=True)


def read_npz(folder: Path) -> None:
    """Read every npz file of a folder, and compare it with numpy's reading."""
    for path in sorted(folder.iterdir()):
        kind = "layout"
        with contextlib.suppress(Exception), zipfile.ZipFile(path) as file:
            kind = "tile" if "config_feat.npy" in file.namelist() else "layout"
        measured = read_graph(path, cast("Any", kind))
        with np.load(path, allow_pickle=False) as arrays:
            pairs: dict[str, Any] = {
                "node_feat": measured.graph.node_feat,
                "node_opcode": measured.graph.node_opcode,
                "edge_index": measured.graph.edge_index,
                "config_runtime": measured.measurements.runtime,
            }
            if isinstance(measured.configurations, LayoutConfigurations):
                pairs["node_config_feat"] = measured.configurations.values()
                pairs["node_config_ids"] = measured.configurations.node_ids
                pairs["node_splits"] = measured.graph.node_splits.reshape(arrays["node_splits"].shape)
            else:
                pairs["config_feat"] = measured.configurations.feat
                pairs["config_runtime_normalizers"] = measured.measurements.normalizer
            for key, array in pairs.items():
                if not np.array_equal(array, arrays[key]):
                    raise WrongContentError(f"{key} differs from numpy's")


def graph_bytes(kind: str, seed: int = 0) -> bytes:
    """Return an npz file of 30 nodes and 20 configurations."""
    random = np.random.default_rng(seed)
    users = np.arange(1, 30)
    edges = np.stack([users, random.integers(users)], axis=1)
    features = random.integers(0, 9, (30, 140)).astype(np.float32)
    splits = np.array([0, 12, 30])
    configurations: LayoutConfigurations | TileConfigurations
    measurements = Measurements(random.integers(1, 10**6, 20))
    if kind == "layout":
        rows = np.full((20, 4, 18), -1)
        rows[..., 0] = random.integers(-1, 6, (20, 4))
        configurations = LayoutConfigurations.from_chunks(np.array([2, 5, 9, 20]), [rows])
    else:
        configurations = TileConfigurations(random.integers(1, 99, (20, 24)).astype(np.float32))
        measurements = Measurements(measurements.runtime, np.full(20, 77))
        splits = np.array([0, 30])
    graph = Graph(features, random.integers(1, 120, 30).astype(np.uint8), edges, splits)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        write_graph(path, MeasuredGraph("graph", graph, configurations, measurements))
        return path.read_bytes()


def rezipped(
    data: bytes,
    change: Callable[[str, bytes], bytes] = lambda _, data: data,
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """Return an npz file whose members are changed before they are packed, so that their checksums are right."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(output, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), change(name, old.read(name)), compression)  # without the time
    return output.getvalue()


def with_zeros(data: bytes, key: str, dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    """Return an npz file in which the array `key` has this header, followed by zeros.

    Args:
        data: the other arrays, as an npz file.
        key: name of the array.
        dtype: of the header.
        shape: of the header.
        size: bytes of zeros.
    """
    output = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            if name != f"{key}.npy":
                new.writestr(name, old.read(name))
        with new.open(f"{key}.npy", "w", force_zip64=True) as stream:
            npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
            for start in range(0, size, 2**20):
                stream.write(bytes(min(2**20, size - start)))
    return output.getvalue()


def _write_bomb(data: bytes, key: str, dtype: str, shape: tuple[int, ...], folder: Path) -> None:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    (folder / "graph.npz").write_bytes(with_zeros(data, key, dtype, shape, size))


def _with_header(member: str, header: str, name: str, data: bytes) -> bytes:
    """Return an array with another header if its name is that of `member`."""
    if name != member:
        return data
    length = struct.unpack("<H", data[8:10])[0]
    text = header.replace("N", str((len(data) - 10 - length) // 4)).encode() + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[10 + length :]


def _with_mutation(member: str, random: np.random.Generator, name: str, data: bytes) -> bytes:
    return mutate(data, random) if name == member else data
