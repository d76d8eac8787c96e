"""`hlorank report`: write one HTML file about trained and evaluated models."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import counted, one_line

if TYPE_CHECKING:
    from hlorank.evaluation.report.trainings import Score

_log = logging.getLogger(__name__)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="write an HTML report on trained and evaluated models",
        description="Writes one HTML file, which opens without a network: scores with intervals and noise ceilings, a "
        "table of all graphs, predicted against measured ranks, what is ranked wrongly, learning curves, cost against "
        "quality, configuration and data.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN_OR_FOLDER",
        help="a model folder, the folder of its report, or a folder of several, such as reports; or the id of an "
        "MLflow run, or of a sweep for all of its runs",
    )
    meaning = "the HTML file (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default="report.html", metavar="FILE", help=meaning)
    meaning = "score the models that were not evaluated, on valid, for this report only"
    parser.add_argument("--evaluate", action="store_true", help=meaning)
    folders = parser.add_argument_group("folders of the graphs that --evaluate scores")
    for name in ("features", "segments"):
        default = Path("data", name)
        folders.add_argument(f"--{name}", type=Path, default=default, metavar="DIR", help="(default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, and name the models that were not evaluated."""
    if arguments.output.is_dir():
        raise ConfigError(f"--output {arguments.output}: a folder; name a file")
    from hlorank.evaluation.report.write_report import write_report
    from hlorank.runs.evaluation import find_runs

    runs = find_runs(arguments.runs, _scoring(arguments.features, arguments.segments) if arguments.evaluate else None)
    write_report(runs, arguments.output)
    missing = [run for run in runs if run.per_graph.empty]
    for run in missing:
        name = f"{run.collection} {run.method}, seed {run.seed or 'unknown'}, {run.place}"
        _log.warning("not evaluated: %s", one_line(f"{name}: {run.unscored}" if run.unscored else name))
    if missing and not arguments.evaluate:
        _log.warning("not evaluated: %d of %s; --evaluate scores them", len(missing), counted(len(runs), "run"))
    sys.stdout.write(f"{arguments.output}\n")
    return 0


def _scoring(features: Path, segments: Path) -> Score:
    """Return a function that scores a model on valid, and writes the tables into a folder."""
    from hlorank.config import EvaluateConfig
    from hlorank.evaluation.evaluate import ModelScores, evaluate_collection
    from hlorank.ranking.ranker import MEMORY_BYTES

    settings = EvaluateConfig(splits=["valid"], memory_bytes=MEMORY_BYTES, index_file=None)

    def score(model: Path, collection: Collection, output: Path) -> None:
        scored = ModelScores(model, features / collection.path, segments / collection.path, MEMORY_BYTES)
        evaluate_collection(scored, collection, settings, output)

    return score
