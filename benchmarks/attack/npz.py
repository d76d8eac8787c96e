"""Attack on the reader of npz files: bombs, wrong headers, odd names and mutations.

An accepted file whose arrays differ from those that numpy reads has wrong content.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Kind, read_graph, write_graph

from .cases import NAMES, Case, WrongContentError, write
from .mutations import mutate, rezipped

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
    originals, members = [graph_bytes(*of) for of in product(("layout", "tile"), (0, 1))], [*arrays("layout")]
    for key, (dtype, shape) in BOMBS.items():
        yield Case(f"npz bomb {key}", partial(_write_bomb, key, dtype, shape), read_npz)
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
            data = rezipped(data, partial(_with_mutation, f"{victim}.npy", random))
        else:
            data = mutate(data, random)
        yield Case(f"npz {number}", write("graph.npz", data), read_npz, mutated=True)


def read_npz(folder: Path) -> None:
    """Read every npz file of a folder, and compare it, written again, with numpy's reading."""
    for path in sorted(folder.iterdir()):
        kind: Kind = "layout"
        with contextlib.suppress(Exception), zipfile.ZipFile(path) as file:
            kind = "tile" if "config_feat.npy" in file.namelist() else "layout"
        write_graph(folder / "again.npz", read_graph(path, kind))
        with np.load(path, allow_pickle=False) as theirs, np.load(folder / "again.npz") as ours:
            for key in ours.files:
                if not np.array_equal(ours[key], theirs[key]):
                    raise WrongContentError(f"{key} differs from numpy's")


def arrays(kind: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return the arrays of a graph of 30 nodes and 20 configurations."""
    random, users = np.random.default_rng(seed), np.arange(1, 30)
    both: dict[str, NDArray[Any]] = {
        "node_feat": random.integers(0, 9, (30, 140)).astype(np.float32),
        "node_opcode": random.integers(1, 120, 30).astype(np.uint8),
        "edge_index": np.stack([users, random.integers(users)], axis=1),
        "config_runtime": random.integers(1, 10**6, 20),
    }
    if kind == "tile":
        tiles = random.integers(1, 99, (20, 24)).astype(np.float32)
        return {**both, "config_feat": tiles, "config_runtime_normalizers": np.full(20, 77)}
    rows = np.full((20, 4, 18), -1, dtype=np.float32)
    rows[..., 0] = random.integers(-1, 6, (20, 4))
    nodes: dict[str, NDArray[Any]] = {
        "node_splits": np.array([[0, 12, 30]]),
        "node_config_ids": np.array([2, 5, 9, 20]),
    }
    return {**both, **nodes, "node_config_feat": rows}


@cache
def graph_bytes(kind: str, seed: int = 0) -> bytes:
    """Return the npz file of a graph."""
    output = io.BytesIO()
    np.savez(output, **arrays(kind, seed))  # type: ignore[arg-type] # numpy's own
    return rezipped(output.getvalue())


def _with_header(key: str, header: str, name: str, data: bytes) -> bytes:
    """Return an array with another header if its name is that of `key`."""
    if name != f"{key}.npy":
        return data
    length = struct.unpack("<H", data[8:10])[0]
    text = header.replace("N", str((len(data) - 10 - length) // 4)).encode() + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[10 + length :]


def _with_mutation(member: str, random: np.random.Generator, name: str, data: bytes) -> bytes:
    return mutate(data, random) if name == member else data


def _write_bomb(key: str, dtype: str, shape: tuple[int, ...], folder: Path) -> None:
    bomb = np.broadcast_to(np.zeros((), dtype), shape)  # which numpy writes in pieces
    np.savez_compressed(folder / "graph.npz", **{**arrays("layout"), key: bomb})  # type: ignore[arg-type] # numpy's own
