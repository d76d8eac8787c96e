"""Attack on what hlorank reads: mutated npz files and protobufs, damaged and malicious archives, and lying mirrors.

Each case runs in a process of its own, with limits of time and memory. A case is accepted, or it ends with a clean
error: one line of at most 500 characters with one of the package's exceptions. Anything else is a finding: a traceback,
more than 10 s, more than 1 GB, or wrong content, which is an accepted file whose arrays differ from those of numpy or
protobuf, a path outside of the target folder, or a password in a message.

    python benchmarks/attack_files.py --json benchmarks/results/attack_files.json
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import errno
import gzip
import io
import lzma
import os
import re
import resource
import runpy
import signal
import struct
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from google.protobuf.message import Message
from numpy.lib import format as npy

import hlorank.fetch.download
from hlorank.config import ConfigError
from hlorank.data.collection import Collection, read_graph, write_graph
from hlorank.data.graph import (
    Graph,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.fetch.tpugraphs import TpuGraphsConfig, fetch
from hlorank.files import DataError, write_json
from hlorank.hlo.hlo_pb2 import HloProto, ModuleTuningData, TuningData
from hlorank.hlo.reader import featurize, read_records

COUNTS = {"npz": 3000, "protobufs": 1500, "archives": 300}
"""Mutated files; the other cases and the mirrors are always the same."""
SECONDS = 10
BYTES = 10**9
LONGEST = 500
OUTCOMES = ("accepted", "clean errors", "tracebacks", "hangs", "memory", "wrong content")
FINDINGS = OUTCOMES[2:]
CLEAN = (DataError, ConfigError, hlorank.fetch.download.DownloadError)
COLLECTION = Collection.parse("layout:xla:default")
ARCHIVE = "npz_layout_xla_default_train.tar"
REFERENCE = runpy.run_path(str(Path(__file__).with_name("hlo.py")))
"""A generator of modules, and a plain version of their features."""


class WrongContentError(Exception):
    """An accepted file with content other than its own."""


@dataclass(frozen=True)
class Case:
    """One attack: `prepare` writes files into an empty folder, and `run` reads them, with limits.

    Mutated cases have no end, others are few.
    """

    name: str
    prepare: Callable[[Path], object]
    run: Callable[[Path], None]
    mutated: bool = False


# --- processes ---


def _clean(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_clean, error.exceptions))
    message = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    return isinstance(error, CLEAN) and len(message) <= LONGEST and message.isprintable()


def _child(case: Case, folder: Path, results: int) -> None:
    """Run a case and write its outcome; an alarm that is not caught ends the process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_AS, (6 * BYTES, 6 * BYTES))
    warnings.simplefilter("error")
    detail, start = "", 0.0
    try:
        case.prepare(folder)
        start = time.monotonic()
        signal.alarm(SECONDS)
        case.run(folder)
        outcome = "accepted"
    except WrongContentError as error:
        outcome, detail = "wrong content", str(error)
    except BaseException as error:
        outcome, detail = "clean errors" if _clean(error) else "tracebacks", str(error)
        if outcome == "tracebacks":
            detail = "".join(traceback.format_exception(error, limit=-4))
    signal.alarm(0)
    os.write(results, f"{outcome}\n{time.monotonic() - start:.2f}\n{detail[:4000]}".encode("utf-8", "backslashreplace"))
    os._exit(0)


def outcome_of(case: Case, folder: Path) -> tuple[str, str, float, int]:
    """Return the outcome of a case, its message, its seconds, and its peak memory in bytes."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        _child(case, folder, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        outcome, seconds, detail = (*file.read().split("\n", 2), "", "", "")[:3]
    _, status, usage = os.wait4(process, 0)
    peak = usage.ru_maxrss * 1024
    if status:
        outcome = "hangs" if os.WTERMSIG(status) == signal.SIGALRM else "tracebacks"
        detail = f"ended by signal {os.WTERMSIG(status)}"
    elif peak > BYTES:
        outcome = "memory"
    return outcome, detail, float(seconds or SECONDS), peak


def _first(cases: Iterator[Case], mutated: int) -> Iterator[Case]:
    """Yield all cases that are not mutated, which are first, and some mutated ones."""
    for case in cases:
        if case.mutated and mutated == 0:
            return
        mutated -= case.mutated
        yield case


def attack(cases: Iterator[Case], verbose: bool = False) -> dict[str, Any]:
    """Run cases one after the other and count their outcomes; each finding is printed."""
    counts: Counter[str] = Counter()
    slowest, largest = (0.0, ""), (0, "")
    findings = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="hlorank-attack-") as name:
            outcome, detail, seconds, peak = outcome_of(case, Path(name))
        counts[outcome] += 1
        slowest, largest = max(slowest, (seconds, case.name)), max(largest, (peak, case.name))
        if outcome in FINDINGS:
            findings.append(f"{case.name}: {outcome}: {detail.strip().splitlines()[-1] if detail else ''}")
            print(f"{case.name}: {outcome}, {seconds:.1f} s, {peak / 1e6:.0f} MB\n{detail}", flush=True)
        elif verbose:
            print(f"{case.name}: {outcome}, {seconds:.1f} s, {peak / 1e6:.0f} MB: {detail}", flush=True)
    return {
        "attacked": counts.total(),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "slowest_seconds": round(slowest[0], 2),
        "slowest": slowest[1],
        "largest_mb": round(largest[0] / 1e6),
        "largest": largest[1],
        "findings": findings,
    }


# --- mutations of bytes ---


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Return bytes with a few flipped bits, or with a piece removed, inserted, repeated, or cut off."""
    changed = bytearray(data)
    start = int(random.integers(len(changed)))
    match int(random.integers(6)):
        case 0 | 1:
            for place in random.integers(len(changed), size=int(random.integers(1, 9))):
                changed[place] ^= 1 << int(random.integers(8))
        case 2:
            del changed[start:]
        case 3:
            del changed[start : start + int(random.integers(1, 64))]
        case 4:
            changed[start:start] = random.bytes(int(random.integers(1, 16)))
        case 5:
            changed[start:start] = changed[start : start + int(random.integers(1, 256))] * int(random.integers(1, 5))
    return bytes(changed)


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: cast("None", (folder / name).write_bytes(data))


# --- npz files ---


def small_graph(kind: str, seed: int = 0) -> MeasuredGraph:
    """Return a graph of 30 nodes with 20 configurations."""
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
    return MeasuredGraph("graph", graph, configurations, measurements)


def graph_bytes(kind: str, seed: int = 0) -> bytes:
    """Return an npz file as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        write_graph(path, small_graph(kind, seed))
        return path.read_bytes()


def _unchanged(_: str, data: bytes) -> bytes:
    return data


def _rezipped(data: bytes, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an npz file whose members are changed before they are packed, so that their checksums are right."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(output, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return output.getvalue()


HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True, %d), }",
    "{'descr': '<f4', 'fortran_order': 7, 'shape': (%d,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, %d), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, %d), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, %d), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, %d), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (%d, 1), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '<f0', 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 0, 5), }",
    "{'descr': [('a', '<f4'), ('b', 'O')], 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '\\\\d', 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%dL,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': %d, }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1,) * %d, }",
    "(" * 3000 + "%d",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 4000 + "%d), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), 'x': '\x1b[31m\n\x00'}",
)


def _with_header(name: str, header: str) -> Callable[[str, bytes], bytes]:
    def change(member: str, data: bytes) -> bytes:
        if member != name:
            return data
        length = struct.unpack("<H", data[8:10])[0]
        text = header.replace("%d", str((len(data) - 10 - length) // 4)).encode() + b"\n"
        return data[:8] + struct.pack("<H", len(text)) + text + data[10 + length :]

    return change


def _bomb(key: str, dtype: str, shape: tuple[int, ...]) -> Callable[[Path], None]:
    """Return the preparation of a file of a few MB whose array `key` unpacks to zeros of this shape."""

    def prepare(folder: Path) -> None:
        data = graph_bytes("layout")
        path = folder / "graph.npz"
        with (
            zipfile.ZipFile(io.BytesIO(data)) as old,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
        ):
            for name in old.namelist():
                if name != f"{key}.npy":
                    new.writestr(name, old.read(name))
            with new.open(f"{key}.npy", "w", force_zip64=True) as stream:
                npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
                size = int(np.prod(shape)) * np.dtype(dtype).itemsize
                for start in range(0, size, 2**20):
                    stream.write(bytes(min(2**20, size - start)))

    return prepare


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


def npz_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield bombs, lying headers and odd names, then mutated files without end."""
    originals = [graph_bytes(kind, seed) for kind in ("layout", "tile") for seed in (0, 1)]
    bombs: dict[str, tuple[str, tuple[int, ...]]] = {
        "node_feat": ("<f4", (1_900_000, 140)),
        "node_opcode": ("|u1", (10**9,)),
        "edge_index": ("<i8", (60_000_000, 2)),
        "node_splits": ("<i8", (1, 130_000_000)),
        "node_config_ids": ("<i8", (130_000_000,)),
        "node_config_feat": ("<f4", (3_500_000, 4, 18)),
        "config_runtime": ("<i8", (130_000_000,)),
        "more": ("<i8", (130_000_000,)),
    }
    for key, (dtype, shape) in bombs.items():
        yield Case(f"npz bomb {key}", _bomb(key, dtype, shape), read_npz)
    with zipfile.ZipFile(io.BytesIO(originals[0])) as file:
        members = file.namelist()
    for number, header in enumerate(HEADERS):
        for member in members:
            data = _rezipped(originals[0], _with_header(member, header))
            yield Case(f"npz header {number} of {member}", _write("graph.npz", data), read_npz)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        data = _rezipped(originals[0], _unchanged, compression)
        yield Case(f"npz compression {compression}", _write("graph.npz", data), read_npz)
    for name in NAMES:
        yield Case(f"npz named {name!r}", _write(f"{name}.npz", mutate(originals[0], random)), read_npz)
    for number, data in enumerate(cycle(originals)):
        if number % 3 == 2:  # changed below the checksums
            victim = members[int(random.integers(len(members)))]
            data = _rezipped(data, partial(_mutate_one, victim, random))
        else:
            data = mutate(data, random)
        yield Case(f"npz {number}", _write("graph.npz", data), read_npz, mutated=True)


def _mutate_one(victim: str, random: np.random.Generator, name: str, data: bytes) -> bytes:
    return mutate(data, random) if name == victim else data


NAMES = (
    "<!--<script>",
    "a\x1b[31mb",
    "a\nb",
    "\udcff\udcfe",
    "\u202eabc",
    "[red]x[bold]",
    "=cmd()",
    "n" * 250,
)


# --- protobufs ---


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


EXTREMES = (0, 1, -1, 2, 97, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))


def change_field(message: Message, random: np.random.Generator) -> None:
    """Change one field somewhere below a message, so that the result still parses and reaches the deeper checks."""
    while fields := [field for field, _ in message.ListFields()]:
        field = fields[int(random.integers(len(fields)))]
        value: Any = getattr(message, field.name)
        extreme = EXTREMES[int(random.integers(len(EXTREMES)))]
        if field.is_repeated:
            place, action = int(random.integers(len(value))), int(random.integers(8))
            if action == 0:
                del value[place]
                return
            if action == 1:
                value.extend([value[place]] * int(random.integers(1, 50)))
                return
            if field.message_type is None:
                with contextlib.suppress(ValueError, TypeError):  # out of range, or no number
                    value[place] = extreme
                return
            message = value[place]
        elif field.message_type is not None:
            message = value
        elif isinstance(value, int):
            with contextlib.suppress(ValueError):
                setattr(message, field.name, extreme)
            return
        else:
            message.ClearField(field.name)
            return


def protobufs() -> list[Message]:
    """Return messages of each kind, with modules of 15 to 120 nodes."""
    messages: list[Message] = []
    for nodes, seed in ((15, 1), (40, 2), (120, 3)):
        module = REFERENCE["generated_module"](nodes, seed)
        instructions = [one for computation in module.computations for one in computation.instructions]
        chosen = [node for node, one in enumerate(instructions) if one.opcode == "dot"][:3]
        for one in instructions:
            del one.shape.dimensions[6:]
        layout = ModuleTuningData(module=module, fingerprint=seed, config_index_to_node=chosen)
        tile = ModuleTuningData(module=module, fingerprint=seed + 9)
        for nanoseconds in range(1_000, 1_020):
            run = layout.runs.add()
            run.profile.compute_time_ns = nanoseconds
            for _ in chosen:
                run.module_config.layout_config.nodes.add().tensors.add(dims=[1, 0])
            run = tile.runs.add(is_default=nanoseconds == 1_000)
            run.profile.compute_time_ns = nanoseconds
            run.op_config.tile_size_config.output_bounds.extend([4, 8])
        messages += [module, HloProto(hlo_module=module), layout, tile]
        messages.append(TuningData(modules=[layout.SerializeToString(), tile.SerializeToString()]))
    return messages


def read_protobuf(folder: Path) -> None:
    """Read every record of every file of a folder, and compare it with the plain version of the features."""
    errors = []
    for path in sorted(folder.iterdir()):
        for record in read_records(path):
            try:
                measured, program = featurize(record)
            except DataError as error:
                errors.append(error)
                continue
            count = sum(len(computation.instructions) for computation in record.module.computations)
            if not measured.graph.nodes == len(program.instructions) == count:
                raise WrongContentError(f"{measured.graph.nodes} nodes of {count} instructions")
            if count > 5_000:
                continue
            plain = [REFERENCE["plain_row"](*one) for one in zip(program.instructions, program.is_root, strict=True)]
            if not np.array_equal(np.array(plain, dtype=np.int64).astype(np.float32), measured.graph.node_feat):
                raise WrongContentError("features differ from the plain version")
    if errors:
        raise ExceptionGroup("records", errors)


def _instructions(count: int, extra: bytes = b"") -> bytes:
    """Return a serialized module with one computation of parameters with ids of their own."""
    one = _field(2, b"add") + extra
    body = b"".join(_field(2, one + b"\x98\x02" + _varint(number)) for number in range(count))
    return _field(3, body)


def protobuf_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield bombs, and then mutated files without end."""
    million = 10**6
    opcode = _field(2, b"add")
    bombs: dict[str, Callable[[], bytes]] = {
        "5 million modules": lambda: b"\n\0" * 5 * million,
        "5 million modules after a good one": lambda: _field(1, _field(1, _instructions(1))) + b"\n\0" * 5 * million,
        "5 million computations": lambda: _instructions(1) + b"\x1a\0" * 5 * million,
        "5 million instructions": lambda: _field(3, _field(2, opcode) + b"\x12\0" * 5 * million),
        "5 million instructions of a record": lambda: _field(1, _field(3, _field(2, opcode) + b"\x12\0" * 5 * million)),
        "5 million instructions, truncated": lambda: _field(
            3, _field(2, opcode) + b"\x12\0" * 5 * million + b"\xff" * 9
        ),
        "5 million runs": lambda: _field(1, _instructions(1)) + b"\x10\x01" + b"\x1a\0" * 5 * million,
        "5 million tuple shapes": lambda: _instructions(1, _field(3, b"\x22\0" * 5 * million)),
        "5 million windows": lambda: _instructions(1, _field(15, b"\n\0" * 5 * million)),
        "5 million slices": lambda: _instructions(1, b"\x8a\x01\0" * 3 * million),
        "10 million operands": lambda: _instructions(1, _field(36, b"\0" * 10 * million)),
        "10 million dimensions": lambda: _instructions(1, _field(3, _field(3, b"\1" * 10 * million))),
        "900,000 nodes": lambda: _instructions(900_000),
        "shapes 90 deep": lambda: _instructions(1, _nested(90)),
        "shapes 10,000 deep": lambda: _instructions(1, _nested(10_000)),
        "5 million nodes of a run": lambda: (
            _field(1, _instructions(1)) + b"\x10\x01\x22\x01\0" + _field(3, _field(2, _field(1, b"\n\0" * 5 * million)))
        ),
        "unknown group before 5 million instructions": lambda: _field(
            3, b"\x53\x54" + _field(2, opcode) + b"\x12\0" * 5 * million
        ),
    }
    for name, make in bombs.items():
        yield Case(f"protobuf {name}", partial(_make, make), read_protobuf)
    for name in NAMES:
        data = protobufs()[0].SerializeToString()
        yield Case(f"protobuf named {name!r}", _write(f"{name}.pb", mutate(data, random)), read_protobuf)
    originals = protobufs()
    for number, original in enumerate(cycle(originals)):
        if random.integers(2):
            message = type(original).FromString(original.SerializeToString())
            for _ in range(int(random.integers(1, 4))):
                change_field(message, random)
            data = message.SerializeToString()
        else:
            data = mutate(original.SerializeToString(), random)
        yield Case(f"protobuf {number}", _write("a.pb", data), read_protobuf, mutated=True)


def _make(make: Callable[[], bytes], folder: Path) -> None:
    (folder / "a.pb").write_bytes(make())


def _nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = _field(4, data)
    return _field(3, data)


# --- archives ---

GOOD_MEMBER = "npz/layout/xla/default/train/graph.npz"


def tar_bytes(members: dict[str, bytes], change: Callable[[tarfile.TarInfo], object] = str, **options: Any) -> bytes:
    """Return a tar archive; `change` edits the header of each member."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", **options) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return output.getvalue()


def _special(kind: bytes, link: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "evil" or "/evil" in info.name:
            info.type, info.linkname, info.size = kind, link, 0

    return change


def _pax(**records: str) -> bytes:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = dict(records)

    return tar_bytes({GOOD_MEMBER: graph_bytes("layout")}, change, format=tarfile.PAX_FORMAT)


def _truncated(pack: Callable[[bytes], bytes], data: bytes) -> bytes:
    return pack(data)[:-20]


def _zip_bomb() -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_LZMA) as file, file.open("node_feat.npy", "w") as stream:
        for _ in range(300):
            stream.write(bytes(2**20))
    return output.getvalue()


def special_archives() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield archives that are wrong in one way each."""
    good = graph_bytes("layout")
    folder = GOOD_MEMBER.rpartition("/")[0]
    members = {GOOD_MEMBER: good}
    plain = tar_bytes(members)
    special = {**members, f"{folder}/evil.npz": b"", "evil": b""}
    for path in (
        "../../../../evil.npz",
        "/tmp/hlorank-attack-evil.npz",
        f"{folder}/../../../../../../../evil.npz",
        f"{folder}/..",
        f"{folder}/evil\0.npz",
        f"{folder}/evil\udcff.npz",
        f"{folder}/evil\n.npz",
        f"{folder}/<!--<script>.npz",
        f"{folder}/{'n' * 300}.npz",
        f"{folder}/.npz",
        f"./{GOOD_MEMBER}",
        f"{folder}/a\\b.npz",
    ):
        yield f"tar path {path!r}", partial(tar_bytes, {**members, path: good}, errors="surrogateescape")
        yield f"tar pax path {path!r}", partial(_pax, path=path)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9"):
        for link in ("/etc/passwd", "../../../..", GOOD_MEMBER, "evil", "\0"):
            change = _special(kind, link)
            yield f"tar {kind!r} to {link!r}", partial(tar_bytes, special, change)
    for key, value in {
        "size": "-1",
        "size ": "99999999999999999999",
        "GNU.sparse.major": "1",
        "GNU.sparse.map": "0,1,x",
        "GNU.sparse.size": "abc",
        "GNU.sparse.realsize": "9" * 30,
        "GNU.sparse.numblocks": "1",
        "mtime": "nan",
        "uid": "x",
        "linkpath": "\0",
        "hdrcharset": "BINARY",
    }.items():
        records = {key.strip(): value}
        if key.startswith("GNU.sparse.m"):
            records |= {
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": "x",
                "GNU.sparse.realsize": "9",
            }
        if value == "0,1,x":
            del records["GNU.sparse.major"], records["GNU.sparse.minor"]
        yield f"tar pax {records}", partial(_pax, **records)
    for place, text in {
        124: b"\xff" * 12,
        125: b"\x80" + b"\xff" * 11,
        100: b"99999999",
        148: b"\xff" * 8,
        156: b"S",
        0: b"\0",
    }.items():
        for seal in (True, False):
            yield f"tar header byte {place}", partial(_header, plain, place, text, seal)
    yield "tar old sparse", lambda: _old_sparse(good)
    packers: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    for name, pack in packers.items():
        yield f"tar in {name}", partial(pack, plain)
        yield f"tar in {name}, truncated", partial(_truncated, pack, plain)
        yield f"member in {name}", partial(tar_bytes, {GOOD_MEMBER: pack(good)})
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        packed = _rezipped(good, _unchanged, compression)
        yield f"npz compression {compression}", partial(tar_bytes, {GOOD_MEMBER: packed})
        for place in range(40, len(packed), len(packed) // 8):
            broken = packed[:place] + bytes(byte ^ 255 for byte in packed[place : place + 9]) + packed[place + 9 :]
            yield f"npz compression {compression} damaged", partial(tar_bytes, {GOOD_MEMBER: broken})
    yield "npz of 300 MB in LZMA", lambda: tar_bytes({GOOD_MEMBER: _zip_bomb()})
    yield "npz with a path out", lambda: tar_bytes({GOOD_MEMBER: _zip_with("../../../evil.npy", good)})
    yield "npz with NUL", lambda: tar_bytes({GOOD_MEMBER: _zip_with("a\0b.npy", good)})
    yield "zip in place of tar", lambda: good
    yield "twice the same", lambda: tar_bytes({GOOD_MEMBER: good, "a/" + GOOD_MEMBER: good})
    yield "no end", lambda: plain[: plain.rindex(good[-100:]) + 100]
    yield "empty", lambda: b""
    yield "zeros", lambda: bytes(10_240)
    yield "300,000 members", lambda: _many(300_000)
    yield "good", lambda: plain


def _zip_with(name: str, data: bytes) -> bytes:
    output = io.BytesIO(data)
    with zipfile.ZipFile(output, "a") as file:
        info = zipfile.ZipInfo("x.npy")
        info.filename = name
        file.writestr(info, b"x")
    return output.getvalue()


def _many(count: int) -> bytes:
    info = tarfile.TarInfo("npz/x")
    return info.tobuf() * count + bytes(1024)


def _header(data: bytes, place: int, text: bytes, seal: bool) -> bytes:
    changed = bytearray(data)
    changed[place : place + len(text)] = text
    if seal and place != 148:
        changed[148:156] = b" " * 8
        changed[148:156] = b"%06o\0 " % sum(changed[:512])
    return bytes(changed)


def _old_sparse(data: bytes) -> bytes:
    info = tarfile.TarInfo(GOOD_MEMBER)
    info.size = len(data)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:410] = b"zzzzzzzzzzz\0" * 2
    header[482:483] = b"\1"
    return _header(bytes(header) + data + bytes(-len(data) % 512 + 1024), 0, bytes(header[:1]), True)


def _settings(base_url: str, downloads: Path) -> TpuGraphsConfig:
    return TpuGraphsConfig(
        base_url=base_url,
        splits=["train"],
        downloads=str(downloads),
        keep_archives=False,
        retries=2,
        timeout_seconds=1.0,
    )


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetch_archive(folder: Path) -> None:
    """Fetch from a folder, and check that nothing is outside of the output and that a member has its bytes."""
    source, output = folder / "source", folder / "output"
    before = _content(source)
    try:
        fetch(COLLECTION, _settings(str(source), folder / "downloads"), output)
    finally:
        found = {path.name for path in folder.iterdir()} - {"source", "output", "downloads"}
        if found or _content(source) != before or Path("/tmp/hlorank-attack-evil.npz").exists():
            raise WrongContentError(f"written outside: {found}")
    good = [graph_bytes("layout"), graph_bytes("tile")]
    for path in (output / "train").glob("*.npz"):
        if path.read_bytes() not in good and path.read_bytes() not in before[ARCHIVE]:
            raise WrongContentError(path.name)


def _archive(make: Callable[[], bytes]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / "source").mkdir()
        (folder / "source" / "LICENSE").write_text("licence")
        (folder / "source" / ARCHIVE).write_bytes(make())

    return prepare


def archive_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield archives that are wrong in one way each, and then mutated ones without end."""
    for name, make in special_archives():
        yield Case(f"archive {name}", _archive(make), fetch_archive)
    folder = GOOD_MEMBER.rpartition("/")[0]
    good = graph_bytes("layout")
    originals = [
        tar_bytes({GOOD_MEMBER: good, f"{folder}/other.npz": graph_bytes("layout", 1)}, format=kind)
        for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
    ]
    originals.append(_pax(path=f"{folder}/{'deep/' * 30}graph.npz", comment="x" * 600))
    for number, original in enumerate(cycle(originals)):
        data = bytearray(original)
        if number % 2:  # headers are a small part of the bytes
            places = [0, data.index(b"ustar", 512) - 257]
            start = places[int(random.integers(2))]
            data[start : start + 512] = mutate(bytes(data[start : start + 512]), random)[:512].ljust(512, b"\0")
            if random.integers(2):
                data[start + 148 : start + 156] = b" " * 8
                data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
        changed = bytes(data) if number % 2 else mutate(original, random)
        yield Case(f"archive {number}", _archive(partial(bytes, changed)), fetch_archive, mutated=True)


# --- mirrors ---

LICENCE = b"licence"
Answer = Callable[["_Mirror"], None]


class _Mirror(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        name = self.path.rpartition("/")[2]
        if name == "LICENSE":
            self.send(200, {"Content-Length": str(len(LICENCE))}, LICENCE)
            return
        with contextlib.suppress(OSError):  # the client has closed the connection
            type(self).answer(self)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {status} Reason", *(f"{key}: {value}" for key, value in headers.items())]
        self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def endless(self, piece: bytes, start: bytes = b"") -> None:
        self.raw(start)
        while True:
            self.raw(piece)


ARCHIVE_BYTES = tar_bytes({GOOD_MEMBER: graph_bytes("layout")})
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


def _whole(headers: dict[str, str], status: int = 200) -> Answer:
    return lambda mirror: mirror.send(status, headers, ARCHIVE_BYTES)


def _more(mirror: _Mirror) -> None:
    """Send a chunk more for each request than announced, and continue where the client asks."""
    length, asked = len(ARCHIVE_BYTES), re.fullmatch(r"bytes=(\d+)-", mirror.headers.get("Range", ""))
    headers = {"Transfer-Encoding": "chunked", "Content-Length": str(length), "ETag": '"a"'}
    if asked:
        headers["Content-Range"] = f"bytes {asked[1]}-{int(asked[1]) + 10**6}/{length}"
    mirror.send(206 if asked else 200, headers, CHUNK * 16)
    mirror.raw(b"0\r\n\r\n")


def _endless_chunks(**headers: str) -> Answer:
    def answer(mirror: _Mirror) -> None:
        mirror.send(200, {"Transfer-Encoding": "chunked", **headers})
        mirror.endless(CHUNK)

    return answer


def _range(content_range: str) -> Answer:
    """Drop the first connection, and answer the second with a wrong range."""

    def answer(mirror: _Mirror) -> None:
        if "Range" in mirror.headers:
            mirror.send(206, {"Content-Range": content_range, "Content-Length": "100"}, ARCHIVE_BYTES[-100:])
        else:
            mirror.send(200, {"Content-Length": str(2**20), "ETag": '"a"'}, bytes(2**17))

    return answer


def _growing(mirror: _Mirror) -> None:
    """Announce a longer file at each request, and send a little of it."""
    server = cast("Any", mirror.server)
    server.count = getattr(server, "count", 0) + 1
    mirror.send(200, {"Content-Length": str(10**6 * server.count), "ETag": f'"{server.count}"'}, bytes(100_000))


def _redirect(location: str, body: bytes = b"", status: int = 302) -> Answer:
    return lambda mirror: mirror.send(status, {"Location": location, "Content-Length": str(len(body))}, body)


def _endless_redirect(mirror: _Mirror) -> None:
    mirror.send(302, {"Location": "/v0/elsewhere", "Transfer-Encoding": "chunked"})
    mirror.endless(CHUNK)


def _gzip_bomb(times: int) -> Answer:
    def answer(mirror: _Mirror) -> None:
        body = bytes(2**26)
        for _ in range(times):
            body = gzip.compress(body, 9)
        mirror.send(200, {"Content-Encoding": ", ".join(["gzip"] * times), "Content-Length": str(len(body))}, body)

    return answer


def mirrors() -> dict[str, Answer]:
    """Return answers of mirrors that lie, by name."""
    length = str(len(ARCHIVE_BYTES))
    found: dict[str, Answer] = {
        "honest": _whole({"Content-Length": length}),
        "more than announced, for ever": _more,
        "endless chunks": _endless_chunks(),
        "endless chunks with a length": _endless_chunks(**{"Content-Length": length}),
        "growing": _growing,
        "endless redirect": _endless_redirect,
        "redirect with a large body": _redirect("/v0/elsewhere", bytes(10**7)),
        "gzip bomb": _gzip_bomb(1),
        "gzip bomb twice": _gzip_bomb(2),
        "gzip bomb thrice": _gzip_bomb(3),
        "damaged gzip": _whole({"Content-Encoding": "gzip", "Content-Length": length}),
        "damaged deflate": _whole({"Content-Encoding": "deflate", "Content-Length": length}),
        "unknown encoding": _whole({"Content-Encoding": "x", "Content-Length": length}),
        "damaged": lambda mirror: mirror.send(
            200, {"Content-Length": length}, ARCHIVE_BYTES[:700] + b"x" * (len(ARCHIVE_BYTES) - 700)
        ),
        "truncated": lambda mirror: mirror.send(200, {"Content-Length": length}, ARCHIVE_BYTES[:100]),
        "other file": _whole({"Content-Length": str(len(ARCHIVE_BYTES) // 2)}),
        "no status line": lambda mirror: mirror.raw(b"\r\n\r\n"),
        "garbage": lambda mirror: mirror.raw(bytes(range(256)) * 40),
        "status abc": lambda mirror: mirror.raw(b"HTTP/1.1 abc OK\r\n\r\n"),
        "status 99999": lambda mirror: mirror.raw(b"HTTP/1.1 99999 OK\r\n\r\n"),
        "reason with controls": lambda mirror: mirror.raw(
            b"HTTP/1.1 404 \x1b[31m\xff\x07\r\nContent-Length: 0\r\n\r\n"
        ),
        "long reason": lambda mirror: mirror.raw(b"HTTP/1.1 404 " + b"x" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n"),
        "long header": lambda mirror: mirror.raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10**6 + b"\r\n\r\n"),
        "200 headers": lambda mirror: mirror.raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
        "endless header": lambda mirror: mirror.endless(b"x" * 2**16, b"HTTP/1.1 200 OK\r\nX: "),
        "header without a colon": lambda mirror: mirror.raw(b"HTTP/1.1 200 OK\r\nabc\r\n\r\n" + ARCHIVE_BYTES),
        "closes at once": lambda mirror: mirror.raw(b""),
        "chunk of wrong size": lambda mirror: mirror.raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"
        ),
        "chunk of negative size": lambda mirror: mirror.raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc"
        ),
        "partial without a request": _whole({"Content-Range": f"bytes 0-1/{length}", "Content-Length": length}, 206),
        "not modified": _whole({"Content-Length": "0"}, 304),
        "no content": _whole({}, 204),
    }
    for value in (
        "abc",
        "-5",
        "",
        "5, 6",
        "1e5",
        "0x10",
        "9" * 5000,
        "+5",
        "5_0",
        "\u00b2",
        str(2**63),
        str(10**15),
        "0",
    ):
        found[f"Content-Length {value[:20]!r}"] = _whole({"Content-Length": value})
    for value in (
        "9" * 5000,
        "-5",
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "x",
        "nan",
        "1e9",
        "",
    ):
        found[f"Retry-After {value[:20]!r}"] = _whole({"Retry-After": value, "Content-Length": "0"}, 503)
    for value in (
        "http://[::1",
        "http://\0",
        "/" * 9,
        "http://",
        "file:///etc/passwd",
        "http://a b/",
        "\xff\xfe",
        "http://x:99999999/",
        "//[",
        "javascript:1",
        "http://" + "a" * 300 + "/",
        "http://user:secret@127.0.0.1:1/",
    ):
        found[f"Location {value[:20]!r}"] = _redirect(value)
    for value in (
        "bytes 0-99/100",
        "bytes 131072-131171/" + "9" * 5000,
        "bytes abc",
        "bytes 131072-1/1048576",
        "bytes 131072-*/*",
    ):
        found[f"Content-Range {value[:24]!r}"] = _range(value)
    found["redirects in a circle"] = lambda mirror: mirror.send(302, {"Location": mirror.path, "Content-Length": "0"})
    return found


def fetch_mirror(answer: Answer) -> Callable[[Path], None]:
    """Return the attack of one mirror: a fetch, and a check of what it leaves behind."""

    def run(folder: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BYTES, 2 * BYTES))
        hlorank.fetch.download.BACKOFF_SECONDS = 0.001
        hlorank.fetch.download.MAX_WAIT_SECONDS = 0.01
        os.environ["NO_PROXY"] = "*"
        handler = type("Handler", (_Mirror,), {"answer": staticmethod(answer)})
        output, downloads = folder / "output", folder / "downloads"
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.daemon_threads = True
            server.block_on_close = False
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            base_url = f"http://me:password@127.0.0.1:{server.server_address[1]}/v0"
            try:
                fetch(COLLECTION, _settings(base_url, downloads), output)
            except Exception as error:
                if "password" in str(error):
                    raise WrongContentError(f"a password in {error}") from None
                if isinstance(error, DataError) and (downloads / ARCHIVE).exists():
                    raise WrongContentError(f"a damaged archive stays: {error}") from None
                raise
        if _content(output / "train") != {"graph.npz": graph_bytes("layout")}:
            raise WrongContentError("other files than those of the archive")

    return run


def mirror_cases(_: np.random.Generator) -> Iterator[Case]:
    """Yield all mirrors."""
    for name, answer in mirrors().items():
        yield Case(f"mirror {name}", Path.exists, fetch_mirror(answer))


ATTACKS: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    "npz": npz_cases,
    "protobufs": protobuf_cases,
    "archives": archive_cases,
    "mirrors": mirror_cases,
}


def run(scale: float, seed: int = 0, only: str = "", verbose: bool = False) -> dict[str, dict[str, Any]]:
    """Run all attacks; `scale` multiplies the numbers of mutated files (all special cases and mirrors always run)."""
    results = {}
    for number, (name, cases) in enumerate(ATTACKS.items()):
        if only not in ("", name):
            continue
        made = cases(np.random.default_rng([seed, number]))
        results[name] = attack(_first(made, round(COUNTS.get(name, 0) * scale)), verbose)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the mutated files")
    parser.add_argument("--count", type=float, default=1.0, metavar="SCALE", help="multiplies the number of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ATTACKS, default="", help="one kind of attack")
    parser.add_argument("--verbose", action="store_true", help="print the message of every case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts as JSON")
    arguments = parser.parse_args()
    results = run(arguments.count / (50 if arguments.quick else 1), arguments.seed, arguments.only, arguments.verbose)
    columns = ("attacked", *OUTCOMES, "slowest_seconds", "largest_mb")
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, row in results.items():
        print(f"| {name} | " + " | ".join(f"{row[column]:,}" for column in columns) + " |")
    if arguments.json:
        write_json(arguments.json, results)
    return int(any(row[finding] for row in results.values() for finding in FINDINGS))


if __name__ == "__main__":
    sys.exit(main())
