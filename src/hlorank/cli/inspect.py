"""`hlorank inspect`: show the contents of a file of graphs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.cli.terminal import make_table, print_table
from hlorank.data.collection import Kind, read_graph
from hlorank.data.graph import LayoutConfigurations, MeasuredGraph
from hlorank.data.npz import NpzFile
from hlorank.hlo.opcodes import CONFIGURABLE
from hlorank.hlo.reader import Record, featurize, read_records


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show the contents of an npz file or an HLO protobuf",
        description="Shows nodes, edges, configurations and runtimes of each graph of an npz file or an HLO protobuf.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="an npz file of the official schema, or a protobuf")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each graph")
    parser.set_defaults(run=run)


def _graphs(path: Path) -> Iterator[tuple[Kind, MeasuredGraph]]:
    kind: Kind
    if path.suffix == ".npz":
        with NpzFile(path) as file:
            kind = "tile" if "config_feat" in file.keys else "layout"
        yield kind, read_graph(path, kind)
    else:
        for record in read_records(path):
            kind = record.kind or _dump_kind(record)
            yield kind, featurize(record, kind)[0]


def _dump_kind(record: Record) -> Kind:
    opcodes = {node.opcode for computation in record.module.computations for node in computation.instructions}
    return "tile" if opcodes.isdisjoint(CONFIGURABLE) else "layout"


def summary(kind: Kind, measured: MeasuredGraph) -> dict[str, Any]:
    """Return the sizes and runtimes of a graph, as JSON values.

    Returns:
        graph, kind, nodes, edges, opcodes (number of different ones), configurable_nodes (0 for tiles), configurations,
        distinct (number of configurations with different features), min_runtime_ns and max_runtime_ns (null where
        runtimes are withheld).
    """
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


def _print_table(summaries: list[dict[str, Any]]) -> None:
    table = make_table([])
    table.add_column("graph", overflow="fold")
    table.add_column("kind")
    for title in ("nodes", "edges", "opcodes", "configurable\nnodes", "configs", "distinct", "runtime (ns)"):
        table.add_column(title, justify="right", no_wrap=True)
    for graph in summaries:
        low, high = graph["min_runtime_ns"], graph["max_runtime_ns"]
        counts = ("nodes", "edges", "opcodes", "configurable_nodes", "configurations", "distinct")
        runtimes = "withheld" if low is None else f"{low:,} .. {high:,}"
        table.add_row(graph["graph"], graph["kind"], *(f"{graph[key]:,}" for key in counts), runtimes)
    print_table(table)


def run(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each graph, or JSON."""
    summaries = [summary(kind, measured) for kind, measured in _graphs(arguments.file)]
    if arguments.json:
        sys.stdout.write(json.dumps(summaries, indent=2) + "\n")
    else:
        _print_table(summaries)
    return 0
