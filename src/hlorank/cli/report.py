"""`hlorank report`: write one HTML file about trained and evaluated models."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="write an HTML report on trained and evaluated models",
        description=(
            "Writes one HTML file, which opens without a network: scores with intervals and noise ceilings, a table of "
            "all graphs, predicted against measured ranks, learning curves, cost against quality, a drawing of a graph "
            "with its segments, configuration and data."
        ),
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN_OR_FOLDER",
        help="a model folder, the folder of its report, or a folder of several, such as reports; or the id of an "
        "MLflow run, or of a sweep for all of its runs",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--graph",
        action="append",
        default=[],
        metavar="NAME",
        help="a graph to draw, may be repeated (default: the largest evaluated graph of each collection)",
    )
    folders = parser.add_argument_group("folders of the graphs that are drawn")
    for name in ("features", "segments"):
        folders.add_argument(
            f"--{name}", type=Path, default=Path("data", name), metavar="DIR", help="(default: %(default)s)"
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        ConfigError: --output is a folder.
    """
    if arguments.output.is_dir():
        raise ConfigError(f"--output {arguments.output}: a folder; name a file")
    from hlorank.evaluation.report.runs import find_runs
    from hlorank.evaluation.report.write_report import write_report

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    runs = find_runs(arguments.runs)
    write_report(runs, arguments.output, arguments.features, arguments.segments, arguments.graph)
    sys.stdout.write(f"{arguments.output}\n")
    return 0
