"""`hlorank inspect`: show the contents of files of graphs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.cli.programs import HELP, add_program_options, find_programs
from hlorank.data.collection import Kind, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.npz import NpzFile
from hlorank.files import DataError
from hlorank.hlo.configurations import is_configurable
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.terminal import Column, add_table_options, print_table

_COLUMNS = {
    "graph": Column("graph"),
    "kind": Column("kind", 6),
    "nodes": Column("nodes", number=True),
    "edges": Column("edges", 5, number=True),
    "opcodes": Column("opcodes", 7, number=True),
    "configurable_nodes": Column("configurable\nnodes", 1, number=True),
    "configurations": Column("configs", 2, number=True),
    "distinct": Column("distinct", 4, number=True),
    "runtime": Column("runtime (ns)", 3, number=True),
    "file": Column("file", 8),
}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show the contents of npz files and HLO modules",
        description="Shows nodes, edges, configurations and runtimes of each graph of npz files and programs. "
        "Files that cannot be read are named, the others are shown, and the exit status is 2.",
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help=f"an npz file of the official schema; {HELP}")
    add_program_options(parser)
    add_table_options(parser, "graph")
    parser.set_defaults(run=run)


def _graphs(path: Path) -> Iterator[dict[str, Any]]:
    """Return the summary of each graph of a file; a dump has no configurations."""
    kind: Kind
    if path.suffix == ".npz":
        with NpzFile(path) as file:
            kind = "tile" if "config_feat" in file.keys else "layout"
        yield summary(kind, read_graph(path, kind))
    else:
        for record in read_records(path):
            kind = record.kind or _dump_kind(record)
            none = {"configurations": 0, "distinct": 0} if record.tuning is None else {}
            yield summary(kind, featurize(record, kind)[0]) | none


def _dump_kind(record: Record) -> Kind:
    nodes = (node for computation in record.module.computations for node in computation.instructions)
    return "layout" if any(map(is_configurable, nodes)) else "tile"


def summary(kind: Kind, measured: MeasuredGraph) -> dict[str, Any]:
    """Return the sizes and runtimes of a graph, as JSON values; runtimes are null where they are withheld."""
    configurations, runtime = measured.configurations, measured.measurements.runtime
    layout = isinstance(configurations, LayoutConfigurations)
    rows = configurations.codes if isinstance(configurations, LayoutConfigurations) else configurations.feat
    withheld = measured.measurements.withheld
    return {
        "graph": measured.name,
        "kind": kind,
        "nodes": measured.graph.nodes,
        "edges": len(measured.graph.edge_index),
        "opcodes": len(np.unique(measured.graph.node_opcode)),
        "configurable_nodes": rows.shape[1] if layout else 0,
        "configurations": len(rows),
        "distinct": len(np.unique(rows, axis=0)),
        "min_runtime_ns": None if withheld else int(runtime.min()),
        "max_runtime_ns": None if withheld else int(runtime.max()),
    }


def _cells(graph: dict[str, Any]) -> Iterator[str]:
    """Return a cell for each of `_COLUMNS`."""
    low, high = graph["min_runtime_ns"], graph["max_runtime_ns"]
    values = {**graph, "runtime": "withheld" if low is None else f"{low:,} .. {high:,}"}
    if not graph["configurations"]:
        values |= {"configurations": "", "distinct": ""}
    for key in _COLUMNS:
        yield f"{values[key]:,}" if isinstance(values[key], int) else values[key]


def run(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each graph, or JSON; name files that cannot be read, and then return 2."""
    programs, errors = find_programs(arguments.file, arguments.dump, arguments.arguments)
    summaries = []
    for program in programs:
        try:
            summaries += [graph | {"file": program.label} for graph in _graphs(program.path)]
        except DataError as error:
            errors.append(program.labelled(error))
    sys.stderr.writelines(f"error: {error}\n" for error in errors)
    if arguments.json and (summaries or not errors):
        sys.stdout.write(json.dumps(summaries, indent=2) + "\n")
    elif summaries:
        print_table([*_COLUMNS.values()], [[*_cells(graph)] for graph in summaries], arguments.wide)
    return 2 if errors else 0
