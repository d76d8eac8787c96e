"""`hlorank rank`: the configurations of programs, from fastest to slowest by a trained model."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.cli.table import print_table
from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import DataError

_LEAST = {"top": 1, "memory": 1, "max_configurations": 1, "candidates": 1, "seed": 0}

_log = logging.getLogger(__name__)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "rank",
        help="rank the configurations of programs with a trained model",
        description=(
            "Ranks the configurations in npz files and tuning records from fastest to slowest, by a trained model. For "
            "the dump of a program, which holds no configurations, candidates are drawn. Nothing is compiled or run. "
            "Files that cannot be ranked are named, the others are ranked, and the exit status is 2."
        ),
    )
    parser.add_argument("input", nargs="+", type=Path, metavar="INPUT", help="an npz file, tuning records, or a dump")
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a model folder, an MLflow run id, or models:/<name>@champion",
    )
    parser.add_argument(
        "--memory", type=int, default=256, metavar="MIB", help="bound of activations while scoring (default: 256)"
    )
    parser.add_argument(
        "--max-configurations",
        type=int,
        default=1_000_000,
        metavar="N",
        help="refuse a graph with more configurations before reading them (default: 1000000)",
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--top", type=int, default=10, metavar="N", help="first configurations (default: 10)")
    shown.add_argument(
        "--compare", action="store_true", help="with the runtimes in the files: Kendall tau, slowdown of the first ones"
    )
    shown.add_argument("--json", action="store_true", help="print a JSON list with one object a graph")
    shown.add_argument(
        "--csv", metavar="FILE", help="write whole rankings as a Kaggle submission; - prints it in place of a table"
    )
    drawn = parser.add_argument_group("candidates of a dump")
    drawn.add_argument(
        "--candidates",
        type=int,
        default=256,
        metavar="N",
        help="layout configurations that are drawn, the first one the compiler's default (default: 256)",
    )
    drawn.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    drawn.add_argument("--save", type=Path, metavar="DIR", help="write the candidates to DIR/<graph>.npz")
    parser.set_defaults(run=run)


def _check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for values that make no sense."""
    for name, least in _LEAST.items():
        if (value := getattr(arguments, name)) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: expected at least {least}")
    if arguments.csv == "-" and arguments.json:
        raise ConfigError("give --json or --csv -, not both: each has standard output to itself")
    if arguments.csv is not None and Path(arguments.csv).is_dir():
        raise ConfigError(f"--csv {arguments.csv}: a folder; name a file")
    if arguments.save is not None and arguments.save.exists() and not arguments.save.is_dir():
        raise ConfigError(f"--save {arguments.save}: not a folder")


Submit = Callable[[str, NDArray[np.int64]], None]


@contextmanager
def _submission(target: str | None, collection: Collection) -> Iterator[Submit]:
    """A function that adds the ranking of a graph to the submission, if there is to be one."""
    from hlorank.evaluation.submission import open_submission

    if target is None:
        yield lambda *_: None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "submission.csv") if target == "-" else Path(target)
        with open_submission(path, collection) as submit:
            yield submit
        if target == "-":
            with path.open(encoding="utf-8") as file:
                shutil.copyfileobj(file, sys.stdout)


def _report(error: DataError | OSError) -> None:
    sys.stderr.write(f"error: {' '.join(str(error).splitlines())}\n")


def _ranked(arguments: argparse.Namespace) -> Iterator[dict[str, Any] | DataError]:
    """Each graph as JSON, or what is wrong with it or with a file.

    Raises:
        DataError: there is no such model, or it is damaged; or the submission is.
        OSError: there is no place for the submission or the candidates.
    """
    from rich.console import Console
    from rich.progress import track

    from hlorank.data.collection import write_graph
    from hlorank.metrics import ranking
    from hlorank.serving.inputs import Reader
    from hlorank.serving.locate import model_folder
    from hlorank.serving.ranker import Ranker
    from hlorank.serving.response import answer

    ranker = Ranker(model_folder(arguments.model), arguments.memory * 2**20)
    if ranker.spec.steps == 0:
        _log.warning("%s: the model was never trained; its scores say nothing", arguments.model)
    reader = Reader(ranker.spec.features, arguments.max_configurations, arguments.candidates, arguments.seed)
    bar = track(arguments.input, "Ranking", console=Console(stderr=True), disable=not sys.stderr.isatty())
    with _submission(arguments.csv, ranker.collection) as submit:
        for path in bar:
            graphs = reader.read(path)
            while True:
                try:
                    if (given := next(graphs, None)) is None:
                        break
                    measured = given.measured
                    scores = ranker.score(measured.graph, measured.configurations, given.extra, name=measured.name)
                    order = ranking(scores)
                    submit(measured.name, order)  # first: what it refuses is an error, not an answer
                    yield answer(given, scores, order, arguments.top, compare=arguments.compare)
                    if given.drawn is not None and arguments.save is not None:
                        write_graph(arguments.save / f"{measured.name}.npz", measured)
                except DataError as error:
                    yield error if error.file is not None else error.in_file(path)


_COMPARED = {"runtime_ns": "runtime (ns)", "slowdown": "slower than\nthe best", "measured_rank": "measured\nrank"}


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield f"{row['rank']:,}"
    yield str(row["configuration"])
    yield f"{row['score']:.5g}"
    if "layouts" in row:
        yield f"{len(row['layouts']):,}"
    if "runtime_ns" in row:
        yield f"{row['runtime_ns']:,}"
        yield f"{row['slowdown']:.2%}"
        yield f"{row['measured_rank']:,}"


def _notes(told: dict[str, Any]) -> Iterator[str]:
    """What stands below a table."""
    if told["drawn"]:
        yield "configurations are drawn; 0 is the compiler's default"
    if "comparison" not in told:
        return
    if (metrics := told["comparison"]) is None:
        yield "nothing to compare with: the runtimes are withheld, or all equal"
        return
    ceiling = "unknown" if metrics["noise_ceiling"] is None else f"{metrics['noise_ceiling']:.3f}"
    yield f"Kendall tau {metrics['kendall_tau']:.3f} (noise ceiling {ceiling}), OPA {metrics['opa']:.3f}"
    yield f"slowdown of the first {metrics['slowdown_1']:.2%}, of the best of five {metrics['slowdown_5']:.2%}"


def _print_tables(graphs: Sequence[dict[str, Any]]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    for told in graphs:
        count = len(told["top"])
        sys.stdout.write(f"{told['graph']}: the first {count} of {told['configurations']:,} configurations\n")
        table = Table(box=SIMPLE)
        shown = told["top"][0]
        columns = ["rank", "configuration", "score", *["nodes\nchanged"] * ("layouts" in shown)]
        for column in [*columns, *(title for key, title in _COMPARED.items() if key in shown)]:
            table.add_column(column, justify="right", no_wrap=True)
        for row in told["top"]:
            table.add_row(*_cells(row))
        print_table(table)
        for line in _notes(told):
            sys.stdout.write(f"  {line}\n")


def _print(graphs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps(graphs, indent=2, allow_nan=False) + "\n")
    elif arguments.csv != "-":
        _print_tables(graphs)


def run(arguments: argparse.Namespace) -> int:
    """Ranks every input, and prints tables, JSON or a submission; the status is 2 if a file or the model is bad.

    Raises:
        ConfigError: wrong usage.
    """
    _check(arguments)
    graphs, failed, end = [], False, None
    try:
        for told in _ranked(arguments):
            if isinstance(told, DataError):
                _report(told)
                failed = True
            else:
                graphs.append(told)
    except (DataError, OSError) as error:
        end = error
    if graphs or end is None:
        _print(graphs, arguments)
    if end is not None:
        _report(end)
    return 2 if failed or end is not None else 0
