"""`hlorank best`: show the best training of each collection in the MLflow store."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from hlorank.terminal import Column, add_table_options, print_table

_COLUMNS = {
    "collection": Column("collection"),
    "method": Column("method", 1),
    "experiment": Column("experiment", 2),
    "seed": Column("seed", 3, number=True),
    "name": Column("name", 4),
    "valid_kendall_tau": Column("valid\ntau", number=True),
    "run_id": Column("run_id"),
    "features": Column("features", 5),
    "model": Column("model", 6),
}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "best",
        help="show the best trained model of each collection",
        description="Shows the finished training with the best validation Kendall tau of each collection, from the "
        "MLflow store that MLFLOW_TRACKING_URI names, else from mlflow.db in the current folder. A collection whose "
        "features changed has one row for each fingerprint of its features, as scores are comparable only on the same "
        "features.",
    )
    parser.add_argument("--collection", metavar="ADDRESS", help="only this collection, such as layout:cpu:random")
    parser.add_argument("--sweep", metavar="NAME", help="only trainings of the sweep with this name")
    add_table_options(parser, "row")
    parser.set_defaults(run=run)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def run(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each training, or JSON."""
    from hlorank.runs.find import best_runs

    found = best_runs(arguments.collection, arguments.sweep)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        rows = [[_cell(training[key]) for key in _COLUMNS] for training in found]
        print_table([*_COLUMNS.values()], rows, arguments.wide)
    return 0
