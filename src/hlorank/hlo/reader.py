"""Reader of HLO protobuf files."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from hlorank.data.collection import Kind
from hlorank.data.graph import LAYOUT_DIMS, Graph, LayoutConfigurations, MeasuredGraph, Measurements, TileConfigurations
from hlorank.files import DataError
from hlorank.hlo import configurations
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto, ModuleTuningData, TuningData
from hlorank.hlo.node_features import node_features
from hlorank.hlo.opcodes import OPCODES, opcode_ids
from hlorank.hlo.program import Program, flatten

_log = logging.getLogger(__name__)

_EXPECTED = "a serialized HloModuleProto, HloProto, ModuleTuningData or TuningData"
_TEXT = bytes({*range(32, 127), *b"\t\n\r\f"})
# Wire format: https://protobuf.dev/programming-guides/encoding
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, eq=False)
class Record:
    """One module of a file.

    Attributes:
        name: name of the graph.
        path: the file.
        place: path of the field that contains the record, empty if the whole file is the record.
        module: the module.
        tuning: tuning record of the module and its runs; None for a compiler's dump, which has no runs.
    """

    name: str
    path: Path
    place: str
    module: HloModuleProto
    tuning: ModuleTuningData | None

    @property
    def kind(self) -> Kind | None:
        """Kind of the configurations of the runs; None for a dump."""
        if self.tuning is None:
            return None
        return "tile" if any(run.HasField("op_config") for run in self.tuning.runs) else "layout"


def proto_files(folder: Path) -> list[Path]:
    """Return the protobufs of a folder: *.hlo.pb if there are any, as compilers dump other *.pb too, else *.pb."""
    return sorted(folder.glob("*.hlo.pb")) or sorted(folder.glob("*.pb"))


def graph_name(path: Path) -> str:
    """Return the name of the graph in a file: the file's name without .pb or .hlo.pb."""
    return path.name.removesuffix(".pb").removesuffix(".hlo")


def _parse(message: type[_M], data: bytes) -> _M:
    """Parse a message; bytes that are not a message give an empty one."""
    try:
        return message.FromString(data)
    except DecodeError:
        return message()


def _is_module(module: HloModuleProto) -> bool:
    """Return whether this is a module: other messages parse as one too, but without known fields."""
    first = module.computations[0] if module.computations else None
    return first is not None and bool(first.instructions) and bool(first.instructions[0].opcode)


def _is_tuning(tuning: ModuleTuningData) -> bool:
    """Return whether this is a tuning record, and not an HloProto, which has its module in the same field."""
    if not _is_module(tuning.module):
        return False
    timed = any(run.profile.compute_time_ns for run in tuning.runs)
    return tuning.HasField("fingerprint") or bool(tuning.config_index_to_node) or timed


def _part(file: BinaryIO, place: tuple[int, int]) -> bytes:
    file.seek(place[0])
    return file.read(place[1])


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for place in range(_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return value
    return None


def field_places(file: BinaryIO, number: int) -> list[tuple[int, int]]:
    """Find the strings, bytes or messages of a field, so that they can be read one at a time.

    Args:
        file: a serialized message, from its first byte to the end of the file.
        number: number of the field.

    Returns:
        The offset and the size in bytes of each entry; none if the file is not a whole message.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    places: list[tuple[int, int]] = []
    while file.tell() < size:
        tag = _varint(file)
        length = {_FIXED64: 8, _FIXED32: 4}.get(-1 if tag is None else tag & 7)
        if tag is not None and tag & 7 in (_VARINT, _DELIMITED):
            length = _varint(file)
            if tag & 7 == _VARINT and length is not None:
                length = 0  # a varint has no payload after its value
        if tag is None or length is None or file.tell() + length > size:
            return []
        if (tag >> 3, tag & 7) == (number, _DELIMITED):
            places.append((file.tell(), length))
        file.seek(length, os.SEEK_CUR)
    return places


def _tuning_records(path: Path, file: BinaryIO, places: Sequence[tuple[int, int]]) -> Iterator[Record]:
    for index, place in enumerate(places):
        # A part that is no record becomes an empty one, which `featurize` refuses; the others can still be read.
        tuning = _parse(ModuleTuningData, _part(file, place))
        # Official names contain the fingerprint as a signed number.
        fingerprint = tuning.fingerprint - 2**64 * (tuning.fingerprint >= 2**63)
        name = f"{graph_name(path)}_{fingerprint:x}"
        yield Record(name, path, f"modules[{index}].", tuning.module, tuning)


def parse_records(file: BinaryIO, path: Path) -> Iterator[Record]:
    """Parse the modules of an open file, one at a time, as `read_records` does.

    Args:
        file: read from its start; must stay open until the last record is taken.
        path: file name for graphs and errors.

    Raises:
        DataError: `file` is empty, text, truncated, or another message.
    """
    name = graph_name(path)
    # A TuningData first: it may have many modules, and parsing it as another message would load all of them.
    places = field_places(file, TuningData.MODULES_FIELD_NUMBER)
    if any(_is_module(_parse(ModuleTuningData, _part(file, place)).module) for place in places):
        yield from _tuning_records(path, file, places)
        return
    file.seek(0)
    data = file.read()
    if _is_module(module := _parse(HloModuleProto, data)):
        yield Record(name, path, "", module, None)
    elif _is_tuning(tuning := _parse(ModuleTuningData, data)):
        yield Record(name, path, "", tuning.module, tuning)
    elif _is_module(module := _parse(HloProto, data).hlo_module):
        yield Record(name, path, "", module, None)
    elif not data:
        raise DataError("file", _EXPECTED, "an empty file", file=path)
    elif not data.translate(None, _TEXT):
        raise DataError("file", f"{_EXPECTED} (binary; XLA: --xla_dump_hlo_as_proto)", "text", file=path)
    else:
        raise DataError("file", _EXPECTED, "a truncated file or another message", file=path)


def read_records(path: Path) -> Iterator[Record]:
    """Read the modules of a file, one at a time: memory is that of the largest module.

    HloModuleProto and HloProto (a compiler's dump), ModuleTuningData and TuningData (TpuGraphs' records) are
    distinguished by their content; fields of other versions of the schema are ignored. A graph is named after its
    file, a graph of a TuningData after its file and fingerprint, as in the dataset.

    Raises:
        DataError: the file is missing, empty, text, truncated, or another message.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError("file", _EXPECTED, error.strerror, file=path) from None
    with file:
        yield from parse_records(file, path)


def _notice(record: Record, program: Program) -> None:
    """Log the parts of a program that its features cannot represent."""
    unknown = Counter(one.opcode for one in program.instructions if one.opcode not in OPCODES)
    if unknown:
        names = ", ".join(f"{name[:40]!r} ({count})" for name, count in unknown.most_common(5))
        _log.warning("%s: unknown opcodes become 0, in %d nodes: %s", record.path, unknown.total(), names)
    if large := sum(len(one.shape.dimensions) > LAYOUT_DIMS for one in program.instructions):
        _log.warning("%s: only the first %d dimensions are kept, in %d nodes", record.path, LAYOUT_DIMS, large)


def _configurations(
    record: Record, program: Program, kind: Kind
) -> tuple[LayoutConfigurations | TileConfigurations, Measurements]:
    if record.tuning is None:
        return configurations.default_tile() if kind == "tile" else configurations.default_layout(program)
    if record.kind != kind:
        raise DataError("runs", f"{kind} configurations", f"{record.kind} configurations")
    return configurations.tiles(record.tuning) if kind == "tile" else configurations.layouts(record.tuning, program)


def featurize(record: Record, kind: Kind | None = None) -> tuple[MeasuredGraph, Program]:
    """Make a graph with the official features of a record; return it with the program that its nodes come from.

    Unknown opcodes become 0 and dimensions beyond the sixth are dropped, both with a warning.

    Args:
        record: a record of `read_records`.
        kind: kind of the configurations; None = that of the record's runs, layouts for a dump.

    Raises:
        NothingToConfigureError: the record is a dump without a node whose layout can be configured, and `kind` is
            layout.
        DataError: a field of the record is wrong.
    """
    kind = kind or record.kind or "layout"
    try:
        program = flatten(record.module)
        opcodes = opcode_ids(program.instructions)
        # Files of tiles have no boundaries.
        splits = program.node_splits if kind == "layout" else np.array([0, len(opcodes)], dtype=np.int64)
        graph = Graph(node_features(program.instructions, program.is_root), opcodes, program.edge_index, splits)
        measured = MeasuredGraph(record.name, graph, *_configurations(record, program, kind))
    except DataError as error:
        raise type(error)(record.place + error.key, error.expected, error.found, file=record.path) from None
    _notice(record, program)
    return measured, program
