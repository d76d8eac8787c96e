"""`hlorank evaluate`: metrics of the scores of any system."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hlorank.data.collection import SPLITS
from hlorank.files import counted
from hlorank.terminal import Column, print_result


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "evaluate",
        help="compute the metrics of any system's scores",
        description="Computes Kendall tau, ordered pair accuracy, slowdowns and Kaggle's score of the scores of any "
        "system, next to the noise ceiling, as the stage evaluate does for hlorank's own models. A lower score means "
        "faster. The file must have a score for every configuration of every graph of the split.",
    )
    parser.add_argument(
        "scores",
        type=Path,
        metavar="SCORES",
        help="a CSV file with the columns graph, configuration and score; an npz file with an array of scores for each "
        "graph; or a Kaggle submission of layouts, as `hlorank rank --csv` writes it",
    )
    address = "layout:<source>:<search> or tile:<source>"
    parser.add_argument("--collection", required=True, metavar="ADDRESS", help=address)
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="the npz tree that holds layout/ or tile/ (default: that of hlorank, or a download of TpuGraphs)",
    )
    parser.add_argument("--split", choices=SPLITS, default="test", help="graphs that are evaluated (default: test)")
    parser.add_argument("--cache", metavar="DIR", help="folder of downloads (default: that of HLORANK_CACHE)")
    shown = parser.add_argument_group("output")
    shown.add_argument("--wide", action="store_true", help="print all columns, also if the terminal is too narrow")
    help_of_row = "print a row of leaderboard/<collection>.csv, for the system of this name"
    shown.add_argument("--row", metavar="SYSTEM", help=help_of_row)
    shown.add_argument("--json", action="store_true", help="print a JSON object: means, and per_graph, all graphs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a table with a row for each graph and one for the means, or JSON."""
    from hlorank.evaluation.evaluator import Evaluator
    from hlorank.evaluation.submission import read_scores
    from hlorank.evaluation.summary import METRIC_COLUMNS, metric_cells

    evaluator = Evaluator(arguments.collection, arguments.root, arguments.split, arguments.cache)
    result = evaluator.eval(read_scores(arguments.scores, evaluator.collection), arguments.scores)
    if arguments.row is not None:
        sys.stdout.write(evaluator.row(arguments.row, result, shlex.join(["hlorank", *sys.argv[1:]])))
        return 0
    columns = [Column("graph"), Column("configs", 3, number=True), *METRIC_COLUMNS.values(), Column("note", 5)]
    rows: list[Sequence[str] | str] = []
    for graph in result["per_graph"]:
        cells = metric_cells(graph, graph["kendall_tau"] is not None)
        rows.append([graph["graph"], f"{graph['configurations']:,}", *cells, graph["note"]])
    ranked = result["graphs"]
    rows += ["", [f"mean of {counted(ranked, 'graph')}", "", *metric_cells(result, ranked > 0), ""]]
    print_result(arguments, result, columns, rows)
    return 0
