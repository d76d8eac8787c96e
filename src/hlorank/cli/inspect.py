"""`hlorank inspect` and `hlorank convert`: the contents of files of graphs, and npz files of HLO modules."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.cli.programs import HELP, add_program_options, find_programs
from hlorank.data.collection import Kind, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.npz import NpzFile
from hlorank.fetch.hlo import check_names, convert
from hlorank.files import DataError, counted, escape
from hlorank.hlo.configurations import NothingToConfigureError, is_configurable
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.runs.store import error_lines
from hlorank.terminal import Column, add_table_options, cells, print_result

_log = logging.getLogger(__name__)
_COLUMNS = {
    "graph": Column("graph"),
    "kind": Column("kind", 6),
    "nodes": Column("nodes", number=True, form=","),
    "edges": Column("edges", 5, number=True, form=","),
    "opcodes": Column("opcodes", 7, number=True, form=","),
    "configurable_nodes": Column("configurable\nnodes", 1, number=True, form=","),
    "configurations": Column("configs", 2, number=True, form=","),
    "distinct": Column("distinct", 4, number=True, form=","),
    "runtime": Column("runtime (ns)", 3, number=True),
    "file": Column("file", 8),
}


def add_inspect(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `hlorank inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="show the contents of npz files and HLO modules",
        description="Shows nodes, edges, configurations and runtimes of each graph of npz files and programs. Files "
        "that cannot be read are named, the others are shown, and the exit status is 2.",
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help=f"an npz file of the official schema; {HELP}")
    add_program_options(parser)
    add_table_options(parser, "graph")
    parser.set_defaults(run=_inspect)


def _graphs(path: Path) -> Iterator[dict[str, Any]]:
    """Return the summary of each graph of a file; a dump has no configurations."""
    if path.suffix == ".npz":
        with NpzFile(path) as file:
            kind: Kind = "tile" if "config_feat" in file.keys else "layout"
        yield _summary(read_graph(path, kind))
    else:
        for record in read_records(path):
            none = {"configurations": 0, "distinct": 0} if record.tuning is None else {}
            yield _summary(featurize(record, record.kind or _dump_kind(record))[0]) | none


def _dump_kind(record: Record) -> Kind:
    nodes = (node for computation in record.module.computations for node in computation.instructions)
    return "layout" if any(map(is_configurable, nodes)) else "tile"


def _summary(measured: MeasuredGraph) -> dict[str, Any]:
    """Return the sizes and runtimes of a graph, as JSON values; runtimes are null where they are withheld."""
    configurations, runtime = measured.configurations, measured.measurements.runtime
    layout = isinstance(configurations, LayoutConfigurations)
    rows = configurations.codes if isinstance(configurations, LayoutConfigurations) else configurations.feat
    withheld = measured.measurements.withheld
    return {
        "graph": measured.name,
        "kind": "layout" if layout else "tile",
        "nodes": measured.graph.nodes,
        "edges": len(measured.graph.edge_index),
        "opcodes": len(np.unique(measured.graph.node_opcode)),
        "configurable_nodes": rows.shape[1] if layout else 0,
        "configurations": len(rows),
        "distinct": len(np.unique(rows, axis=0)),
        "min_runtime_ns": None if withheld else int(runtime.min()),
        "max_runtime_ns": None if withheld else int(runtime.max()),
    }


def _cells(graph: dict[str, Any]) -> list[str]:
    low, high = graph["min_runtime_ns"], graph["max_runtime_ns"]
    counts = {key: graph[key] or None for key in ("configurations", "distinct")}  # a dump has none
    return cells(_COLUMNS, graph | counts | {"runtime": "withheld" if low is None else f"{low:,} .. {high:,}"})


def _inspect(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each graph, or JSON; name files that cannot be read, and then return 2."""
    programs, errors = find_programs(arguments.file, arguments.dump, arguments.arguments)
    summaries = []
    for program in programs:
        try:
            summaries += [graph | {"file": program.label} for graph in _graphs(program.path)]
        except DataError as error:
            errors.append(program.labelled(error))
    sys.stderr.writelines(f"error: {error}\n" for error in errors)
    if summaries:
        print_result(arguments, summaries, [*_COLUMNS.values()], [_cells(graph) for graph in summaries])
    return 2 if errors else 0


def add_convert(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `hlorank convert`."""
    parser = commands.add_parser(
        "convert",
        help="convert HLO modules to npz files with the official features",
        description="Converts programs, such as XLA dumps and tuning records of TpuGraphs, to npz files, as the "
        "origin hlo of fetch does. Dumps with nothing to configure are left out with a notice. Files that cannot be "
        "converted are named, the others are converted, and the exit status is 2.",
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help=HELP)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for the npz files")
    add_program_options(parser)
    parser.set_defaults(run=_convert)


def _convert(arguments: argparse.Namespace) -> int:
    """Convert every input; name failed inputs on standard error, and then return 2, or 1 for a file not written."""
    programs, unusable = find_programs(arguments.file, arguments.dump, arguments.arguments)
    errors: list[DataError | OSError] = [*unusable]
    check_names(program.path for program in programs)
    left_out = 0
    for program in programs:
        try:
            written = convert(program.path, arguments.folder)
        except NothingToConfigureError as error:
            _log.warning("left out: %s", program.labelled(error))
            left_out += 1
        except DataError as error:
            errors.append(program.labelled(error))
        except OSError as error:
            errors.append(error)
        else:
            sys.stdout.writelines(f"{escape(str(path))}\n" for path in written)
    sys.stderr.writelines(f"{line}\n" for error in errors for line in error_lines(error) or ())
    if errors:
        return 1 if any(isinstance(error, OSError) for error in errors) else 2
    if left_out and left_out == len(programs):
        raise DataError("FILE", "a program to configure", f"none in {counted(left_out, 'file')}")
    return 0
