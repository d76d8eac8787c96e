"""Attack on the reader of protobufs: bombs, odd names and mutations.

An accepted module whose features differ from those of the reference implementation has wrong content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np

from hlorank.files import DataError
from hlorank.hlo.reader import featurize, read_records

from .cases import NAMES, Case, WrongContentError, write
from .modules import plain_row, protobufs
from .mutations import mutate, mutate_message

MILLION = 10**6


def protobuf_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield bombs and odd names, then unlimited mutated files."""
    for name, make in bombs().items():
        yield Case(f"protobuf {name}", partial(_write_bomb, make), read_protobuf)
    originals = protobufs()
    for name in NAMES:
        data = mutate(originals[0].SerializeToString(), random)
        yield Case(f"protobuf named {name!r}", write(f"{name}.pb", data), read_protobuf)
    for number, original in enumerate(cycle(originals)):
        data = mutate_message(original, random)
        yield Case(f"protobuf {number}", write("a.pb", data), read_protobuf, mutated=True)


def read_protobuf(folder: Path) -> None:
    """Read every record of every file of a folder, and compare its features with the reference implementation."""
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
            plain = [plain_row(*one) for one in zip(program.instructions, program.is_root, strict=True)]
            if not np.array_equal(np.array(plain, dtype=np.int64).astype(np.float32), measured.graph.node_feat):
                raise WrongContentError("features differ from the reference implementation")
    if errors:
        raise ExceptionGroup("records", errors)


def bombs() -> dict[str, Callable[[], bytes]]:
    """Return functions that make files with millions of small parts, by name."""
    instructions = _field(2, _field(2, b"add")) + b"\x12\0" * 5 * MILLION
    record = _field(1, _instructions(1)) + b"\x10\x01"
    nodes = b"\n\0" * 5 * MILLION
    return {
        "5 million modules": lambda: nodes,
        "5 million modules after a good one": lambda: _field(1, _field(1, _instructions(1))) + nodes,
        "5 million computations": lambda: _instructions(1) + b"\x1a\0" * 5 * MILLION,
        "5 million instructions": lambda: _field(3, instructions),
        "5 million instructions of a record": lambda: _field(1, _field(3, instructions)),
        "5 million instructions, truncated": lambda: _field(3, instructions + b"\xff" * 9),
        "5 million runs": lambda: record + b"\x1a\0" * 5 * MILLION,
        "5 million tuple shapes": lambda: _instructions(1, _field(3, b"\x22\0" * 5 * MILLION)),
        "5 million windows": lambda: _instructions(1, _field(15, nodes)),
        "5 million slices": lambda: _instructions(1, b"\x8a\x01\0" * 3 * MILLION),
        "10 million operands": lambda: _instructions(1, _field(36, b"\0" * 10 * MILLION)),
        "10 million dimensions": lambda: _instructions(1, _field(3, _field(3, b"\1" * 10 * MILLION))),
        "900,000 nodes": lambda: _instructions(900_000),
        "shapes 90 deep": lambda: _instructions(1, _nested(90)),
        "shapes 10,000 deep": lambda: _instructions(1, _nested(10_000)),
        "5 million nodes of a run": lambda: record + b"\x22\x01\0" + _field(3, _field(2, _field(1, nodes))),
        "unknown group before 5 million instructions": lambda: _field(3, b"\x53\x54" + instructions),
    }


def _write_bomb(make: Callable[[], bytes], folder: Path) -> None:
    (folder / "a.pb").write_bytes(make())


def _instructions(count: int, extra: bytes = b"") -> bytes:
    """Return a serialized module with one computation of parameters with ids of their own."""
    one = _field(2, b"add") + extra
    body = b"".join(_field(2, one + b"\x98\x02" + _varint(number)) for number in range(count))
    return _field(3, body)


def _nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = _field(4, data)
    return _field(3, data)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
