"""Reader of HLO modules: protobufs, HLO text and StableHLO."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from hlorank.data.collection import Kind
from hlorank.data.configurations import (
    LAYOUT_DIMS,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import Graph
from hlorank.files import DataError, counted, open_file, short_name
from hlorank.hlo import configurations
from hlorank.hlo.checks import check_module
from hlorank.hlo.entry_layouts import assign
from hlorank.hlo.forms import NoProgramError, as_protobuf, language_of
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto, ModuleTuningData, TuningData
from hlorank.hlo.node_features import OPCODES, element_type, has_column, node_features, opcode_ids
from hlorank.hlo.program import Program, flatten
from hlorank.hlo.wire import check_counts

_log = logging.getLogger(__name__)

_EXPECTED = "HLO text, StableHLO, or a serialized HloModuleProto, HloProto, ModuleTuningData or TuningData"
_SUFFIX = re.compile(r"(?:\.hlo)?(?:\.pb|\.txt|\.mlir|\.mlirbc)?(?:\.xz|\.gz)?\Z")
_STAGE = re.compile(r"\.((?:\w+_)?(?:before|after)_\w*optimizations|\d{4}\..*\.after_.*)\Z")
_PROTOBUF = re.compile(r"\.pb(?:\.xz|\.gz)?\Z")
_COMPILERS = re.compile(r"module_\d+\.")
_LISTED = 10
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, eq=False)
class Record:
    """One module of a file, by the name of its graph."""

    name: str
    path: Path
    place: str
    """Path of the field that contains the record, empty if the whole file is the record."""
    module: HloModuleProto
    tuning: ModuleTuningData | None
    """Tuning record of the module and its runs; None for a compiler's dump, which has no runs."""

    @property
    def kind(self) -> Kind | None:
        """Kind of the configurations of the runs; None for a dump."""
        if self.tuning is None:
            return None
        return "tile" if any(run.HasField("op_config") for run in self.tuning.runs) else "layout"


DUMPS = ("before_layout-assignment", "before_optimizations")
"""Stages of XLA's dumps, in order of preference: of a module the first stage is taken that was dumped."""


def _stem(path: Path) -> str:
    return _SUFFIX.sub("", path.name)


def _stage(path: Path) -> str:
    """Return the stage of a dump by the name of its file, empty for another file."""
    found = _STAGE.search(_stem(path))
    return found[1] if found else ""


def _programs(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the programs in a folder, at any stage, and the names of what else is there."""
    entries = [] if not folder.is_dir() else sorted(path for path in folder.iterdir() if path.name[0] != ".")
    protobufs = [path for path in entries if _PROTOBUF.search(path.name) and path.is_file()]
    # Compilers dump other protobufs beside *.hlo.pb.
    named = {path for path in protobufs if ".hlo.pb" in path.name}
    protobufs = [path for path in protobufs if not named or path in named or _is_program(path)]
    names = {_stem(path) for path in protobufs}

    def is_text(path: Path) -> bool:
        # What is around a module makes only a file with the suffix of a program to one: a page may quote a module.
        return _stem(path) not in names and language_of(path, around=_stem(path) != path.name) is not None

    programs = sorted({*protobufs, *filter(is_text, entries)})
    return programs, [f"{path.name}{'/' * path.is_dir()}" for path in entries if path not in {*programs}]


def _is_program(path: Path) -> bool:
    """Return whether a protobuf is a program, even a broken program."""
    try:
        next(read_records(path))
    except DataError as error:
        return not isinstance(error, NoProgramError)
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + f" and {len(names) - _LISTED} more" * (len(names) > _LISTED)


def contents(folder: Path) -> str:
    """Return what is in a folder without a program at a stage: ends of the names of dumps, or else other names."""
    programs, others = _programs(folder)
    stages = sorted({stage.rpartition(".")[2] for path in programs if (stage := _stage(path))})
    return f"only {_listed(stages or others)}" if stages or others else "none"


def program_files(folder: Path, dump: str | None = None) -> list[Path]:
    """Return the programs of a folder, sorted; others are left out, with a notice of their names.

    These are *.hlo.pb if there are any, with the other *.pb that are programs, else *.pb; and files of HLO text and
    StableHLO of any name, without programs that are also there as a protobuf. Of the dumps of one module at several
    stages one is taken: `dump` is the end of its name (- and _ alike), None the first of DUMPS that the module has.
    """
    programs, others = _programs(folder)
    # XLA writes layout-assignment, and Python's names have _ for -.
    stages = {path: _stage(path).replace("-", "_") for path in programs}
    ends = [end.replace("-", "_") for end in (DUMPS if dump is None else (dump,))]
    module = {path: _stem(path).removesuffix(_stage(path)) for path in programs}
    has = {(module[path], end) for path, stage in stages.items() for end in ends if stage.endswith(end)}
    first = {name: next((end for end in ends if (name, end) in has), ends[-1]) for name in module.values()}
    chosen = [path for path, stage in stages.items() if not stage or stage.endswith(first[module[path]])]
    left_out = Counter({"other stages": len(programs) - len(chosen)})
    left_out.update(map(_kind, others))
    if chosen and left_out.total():
        kinds = [f"{count} {kind}" for kind, count in left_out.most_common() if count]
        _log.warning("%s: %s taken; left out: %s", folder, counted(len(chosen), "program"), _listed(kinds))
    return chosen


def _kind(name: str) -> str:
    """Return the name of a file, or the kind of one that a compiler wrote, such as buffer-assignment.txt or ll."""
    if not _COMPILERS.match(name):
        return name
    found = name.rpartition("optimizations-")[2].split(".")
    return ".".join(found[-2:] if found[-1] == "txt" else found[-1:])


def graph_name(path: Path) -> str:
    """Return the name of the graph in a file: the file's name without suffixes such as .pb, .hlo.pb or .hlo.txt.xz."""
    return short_name(_stem(path))


def _parse(message: type[_M], data: bytes) -> _M:
    """Parse a message of a limited size; bytes that are not a message, or that nest too deep, give an empty message."""
    check_counts(message, data)
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


def _tuning_records(path: Path, parts: Sequence[bytes]) -> Iterator[Record]:
    for index, part in enumerate(parts):
        # A part that is no record becomes an empty record, which `featurize` refuses; other parts can still be read.
        tuning = _parse(ModuleTuningData, part)
        # Official names contain the fingerprint as a signed number.
        fingerprint = tuning.fingerprint - 2**64 * (tuning.fingerprint >= 2**63)
        yield Record(f"{graph_name(path)}_{fingerprint:x}", path, f"modules[{index}].", tuning.module, tuning)


def _single_record(data: bytes, path: Path) -> Record:
    """Parse a file that is one record; an empty, truncated or too large file, or another message is a DataError."""
    name = graph_name(path)
    refused: DataError = NoProgramError(
        "file", _EXPECTED, "a truncated file, another message, or one that nests too deep"
    )
    for kind in (HloModuleProto, ModuleTuningData, HloProto):
        try:
            message: Message = _parse(kind, data)
        except DataError as error:
            if kind is not HloModuleProto:  # as which the many runs of a record are computations
                raise
            refused = error
            continue
        match message:
            case HloModuleProto() if _is_module(message):
                check_module(message)
                return Record(name, path, "", message, None)
            case ModuleTuningData() if _is_tuning(message):
                return Record(name, path, "", message.module, message)
            case HloProto() if _is_module(message.hlo_module):
                check_module(message.hlo_module)
                return Record(name, path, "", message.hlo_module, None)
    raise refused if data else NoProgramError("file", _EXPECTED, "an empty file")


def parse_records(file: BinaryIO, path: Path) -> Iterator[Record]:
    """Parse the modules of an open file as `read_records` does; `path` is the name for graphs and errors."""
    try:
        data = as_protobuf(file)
        # A TuningData first: it may have many modules, and parsing it as another message would load all of them.
        parts = [*_parse(TuningData, data).modules]
        if not any(_is_module(_parse(ModuleTuningData, part).module) for part in parts):
            parts = []  # of another message
        if len(parts) == 1 and not _is_tuning(_parse(ModuleTuningData, parts[0])):
            data, parts = parts[0], []  # of an HloSnapshot the HloProto
        if parts:
            yield from _tuning_records(path, parts)
        else:
            yield _single_record(data, path)
    except DataError as error:
        raise error.in_file(path) from None


def read_records(path: Path) -> Iterator[Record]:
    """Read the modules of a file; one module at a time is parsed.

    Forms are distinguished by their content, also in compressed files; fields of other versions of the schema are
    ignored. A graph is named after its file, a graph of a TuningData after its file and fingerprint, as in the dataset.
    DataError says why a file cannot be read, for text with the line and the column.
    """
    with open_file(path, _EXPECTED) as file:
        yield from parse_records(file, path)


def _notice(record: Record, program: Program) -> None:
    """Log the parts of a program that its features cannot represent."""
    shapes = [instruction.shape for instruction in program.instructions]
    opcodes = Counter(node.opcode for node in program.instructions if node.opcode not in OPCODES)
    types = Counter(element_type(shape) for shape in shapes if not has_column(shape))
    dynamic = sum(any(shape.is_dynamic_dimension) for shape in shapes)
    large = sum(len(shape.dimensions) > LAYOUT_DIMS for shape in shapes)
    notices = [
        ("unknown opcodes become 0", opcodes.total(), opcodes),
        ("element types without a feature", types.total(), types),
        ("dynamic dimensions count as large as their bounds", dynamic, Counter[str]()),
        (f"only the first {LAYOUT_DIMS} dimensions are kept", large, Counter[str]()),
    ]
    for what, nodes, unknown in notices:
        if nodes:
            names = ", ".join(f"{name[:40]!r} ({number})" for name, number in unknown.most_common(5))
            _log.warning("%s: %s, in %s%s", record.path, what, counted(nodes, "node"), names and f": {names}")


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

    Unknown opcodes and element types become 0, dimensions beyond the sixth are dropped, and a dynamic dimension is as
    large as its bound, each with a warning. `kind` None is the kind of the record's runs, layouts for a dump. A wrong
    field is a DataError, a dump without a node whose layout can be configured a NothingToConfigureError.
    """
    kind = kind or record.kind or "layout"
    try:
        if record.tuning is None:
            assign(record.module)
        program = flatten(record.module)
        _notice(record, program)
        opcodes = opcode_ids(program.instructions)
        # Files of tiles have no boundaries.
        splits = program.node_splits if kind == "layout" else np.array([0, len(opcodes)], dtype=np.int64)
        graph = Graph(node_features(program.instructions, program.is_root), opcodes, program.edge_index, splits)
        measured = MeasuredGraph(record.name, graph, *_configurations(record, program, kind))
    except DataError as error:
        raise type(error)(record.place + error.key, error.expected, error.found, file=record.path) from None
    return measured, program
