"""`hlorank inspect`: what a file of graphs holds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Kind, read_graph
from hlorank.data.graph import LayoutConfigurations, MeasuredGraph
from hlorank.data.npz import NpzFile
from hlorank.hlo.opcodes import CONFIGURABLE
from hlorank.hlo.reader import Record, featurize, read_records


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show what an npz file or an HLO protobuf holds",
        description="Shows nodes, edges, configurations and runtimes of each graph of an npz file or an HLO protobuf.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="an npz file of the official schema, or a protobuf")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object a graph")
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
    opcodes = {one.opcode for computation in record.module.computations for one in computation.instructions}
    return "tile" if opcodes.isdisjoint(CONFIGURABLE) else "layout"


def summary(kind: Kind, measured: MeasuredGraph) -> dict[str, Any]:
    """What there is to say about a graph, as JSON values.

    Returns:
        graph, kind, nodes, edges, opcodes (different ones), configurable_nodes (0 for tiles), configurations, distinct
        (configurations that the features tell apart), and the lowest and highest runtime in ns, null where withheld.
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
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("graph", overflow="fold")
    table.add_column("kind")
    for title in ("nodes", "edges", "opcodes", "configurable\nnodes", "configs", "distinct", "runtime (ns)"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in summaries:
        low, high = one["min_runtime_ns"], one["max_runtime_ns"]
        counts = ("nodes", "edges", "opcodes", "configurable_nodes", "configurations", "distinct")
        runtimes = "withheld" if low is None else f"{low:,} .. {high:,}"
        table.add_row(one["graph"], one["kind"], *(f"{one[key]:,}" for key in counts), runtimes)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file or a pipe wraps nothing
    console.print(table)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table with one row a graph, or JSON."""
    summaries = [summary(kind, measured) for kind, measured in _graphs(arguments.file)]
    if arguments.json:
        sys.stdout.write(json.dumps(summaries, indent=2) + "\n")
    else:
        _print_table(summaries)
    return 0
