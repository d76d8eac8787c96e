"""Counts of the parts of serialized HLO messages, by which files are refused before they are parsed.

An empty message takes two bytes of a file, and up to 400 in memory.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count

from google.protobuf.message import Message

from hlorank.data.graph import MAX_NODES
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData

MAX_MODULES = 100_000
MAX_INSTRUCTIONS = 2 * MAX_NODES
"""Limit of the computations and instructions of a module."""
MAX_RUNS = 2**20
MAX_FIELDS = 2**21
"""Limit of the fields of a file, its modules and their computations, unknown ones included: about two seconds."""
_WIDTHS = {1: 8, 5: 4}  # of wire types of a fixed width; 3 and 4 only mark groups, whose fields count as others


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it; IndexError where it has no end."""
    if (value := data[place]) < 128:
        return value, place + 1
    value -= 128
    for more in range(1, 10):
        byte = data[place + more]
        value |= (byte & 127) << 7 * more
        if byte < 128:
            return value, place + more + 1
    raise IndexError


def _fields(data: memoryview, walked: Iterator[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield number and payload of each field of a message, counted by `walked`, up to its end or to damage."""
    place = 0
    with suppress(IndexError):
        while place < len(data):
            _check("fields", next(walked), MAX_FIELDS)
            tag, place = _varint(data, place)
            size = _WIDTHS.get(tag & 7, 0)
            if tag & 7 == 2:
                size, place = _varint(data, place)
            elif tag & 7 == 0:
                _, place = _varint(data, place)
            yield tag >> 3, data[place : place + size]
            place += size


def _check(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise DataError("file", f"at most {limit:,} {what}", "more")


def check_counts(message: type[Message], data: bytes) -> None:
    """Raise DataError if a serialized message has too many modules, computations with their instructions, or runs."""
    walked = count(1)
    modules, runs = [memoryview(data)], 0
    if message is not HloModuleProto:
        whole, modules = modules[0], []
        for number, payload in _fields(whole, walked):
            if number == 1:
                modules.append(payload)
                _check("modules", len(modules), MAX_MODULES)
            elif number == 3 and message is ModuleTuningData:
                _check("runs", runs := runs + 1, MAX_RUNS)
    parts = 0
    for module in modules if message is not TuningData else ():
        computations = (payload for number, payload in _fields(module, walked) if number == 3)
        for computation in computations:
            for number in chain([2], (number for number, _ in _fields(computation, walked))):
                parts += number == 2
                _check("computations and instructions", parts, MAX_INSTRUCTIONS)
