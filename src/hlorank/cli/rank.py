"""`hlorank rank`: rank the configurations of programs from fastest to slowest by a trained model."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hlorank.cli.programs import (
    HELP,
    Program,
    add_model_arguments,
    add_program_options,
    collection_of,
    find_programs,
    is_function,
    open_ranker,
)
from hlorank.cli.rank_output import print_rankings, submission, write_outputs
from hlorank.config import ConfigError
from hlorank.fetch.hlo import check_names
from hlorank.files import DataError, counted
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.ranking.rankers import fitting_ranker
from hlorank.terminal import add_number, add_table_options, min_int

_log = logging.getLogger(__name__)

_STATUS_OTHER_STAGE = 3


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "rank",
        help="rank the configurations of programs with a trained model",
        description="Ranks the configurations in npz files and tuning records from fastest to slowest, by a trained "
        "model. For the dump of a program, which holds no configurations, candidates are drawn. Nothing is run. For a "
        "model of layouts on a CPU or of a TPU's estimates, a module before XLA's passes is compiled up to layout "
        "assignment, with a notice; this needs jax, and libtpu for TPUs. Dumps with nothing to configure are left out "
        "with a notice. Files that cannot be ranked are named, others are ranked, and the exit status is 2. It is 3 "
        "if a dump is ranked that is not of the stage or backend that the model was trained on.",
    )
    parser.add_argument("input", nargs="+", metavar="INPUT", help=f"an npz file or tuning records; {HELP}")
    add_program_options(parser)
    add_model_arguments(parser, "; by default the ranker of hlorank that fits the programs")
    add_number(
        parser,
        "--workers",
        1,
        "files that are ranked at the same time, each in a process with one thread and with --memory of its own; 1 "
        "takes a thread for each core",
    )
    add_number(parser, "--max-configurations", 1_000_000, "refuse a graph with more configurations before reading them")
    drawn = parser.add_argument_group("candidates of a dump")
    add_number(drawn, "--candidates", 256, "layout configurations that are drawn, the first one the compiler's default")
    add_number(drawn, "--seed", 0, "seed of the candidates", 0)
    drawn.add_argument(
        "--verify",
        type=min_int(1),
        metavar="K",
        help="compile the default and the first others, K in all: those that compile to the default's program give way "
        "to the next ones, and the copies and transposes that the others add and remove are listed",
    )
    drawn.add_argument("--save", type=Path, metavar="DIR", help="write the candidates to DIR/<graph>.npz")
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def _add_output(group: argparse._ArgumentGroup) -> None:
    add_number(group, "--top", 10, "configurations that are shown")
    group.add_argument(
        "--compare",
        action="store_true",
        help="compare with the runtimes in the files: Kendall tau, slowdown of the first configurations",
    )
    add_table_options(group, "graph")
    group.add_argument(
        "--csv", metavar="FILE", help="write complete rankings as a Kaggle submission; - prints it instead of a table"
    )
    add_number(group, "--choose", 1, "rank of the configuration whose layouts are shown below the table, and exported")
    group.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write the configuration of rank --choose to DIR: as JSON, <graph>.json, for hlorank.apply_configuration, "
        "and as HLO with layout constraints, <graph>.hlo.pb and, with jaxlib, <graph>.hlo.txt",
    )


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that exclude each other, and paths of the wrong kind."""
    if arguments.csv == "-" and arguments.json:
        raise ConfigError("give one of --json and --csv -: each needs the standard output for itself")
    if arguments.csv is not None and Path(arguments.csv).is_dir():
        raise ConfigError(f"--csv {arguments.csv}: a folder; name a file")
    if arguments.choose > arguments.top:
        raise ConfigError(f"--choose {arguments.choose}: expected one of the first --top {arguments.top}")
    for option, folder in (("--save", arguments.save), ("--export", arguments.export)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ConfigError(f"{option} {folder}: not a folder")


_Ranked = tuple[dict[str, Any], Any]
"""The printed facts of a graph, and its ranking of (configurations,) int64 for a submission."""

_opened = lru_cache(maxsize=1)(open_ranker)
"""Ranker of a model, which each process opens once."""


def _rank_program(program: Program, arguments: argparse.Namespace, folder: str) -> list[_Ranked | DataError]:
    """Rank the graphs of a program, and write their exports and candidates; an error takes the place of its ranking."""
    import numpy as np

    from hlorank.metrics import ranking
    from hlorank.ranking.inputs import GraphReader
    from hlorank.ranking.result import doubts, ranked_graph
    from hlorank.ranking.verify import verify

    ranker = _opened(folder, arguments.memory, arguments.accelerator)
    reader = GraphReader(
        ranker.spec.features,
        arguments.max_configurations,
        arguments.candidates,
        arguments.seed,
        # The module of a function is at the right stage, and --dump says of which stage the user's modules are.
        compile_dumps=arguments.dump is None and not is_function(program.label),
    )
    results: list[_Ranked | DataError] = []
    graphs = reader.read(program.path)
    while True:
        try:
            if (given := next(graphs, None)) is None:
                return results
            measured = given.measured
            scores = ranker.score(measured.graph, measured.configurations, name=measured.name)
            complete = order = ranking(scores)
            verified = None
            if arguments.verify is not None:
                verified = verify(given, order, arguments.verify)
                order = order[~np.isin(order, [*verified.same, *verified.failed])]
            shown = ranked_graph(given, scores, order, arguments.top, compare=arguments.compare)
            if verified is not None:
                shown["verified"] = {"same_as_default": verified.same, "failed": verified.failed}
                for row in shown["top"]:
                    row["moves"] = verified.moves.get(row["configuration"])
            shown["doubts"] = doubts(given, scores, ranker.spec.features)
            shown |= {"file": program.label, "trained_on": ranker.spec.features.runtimes or None}
            shown |= write_outputs(given, shown["top"], arguments, str(ranker.collection))
            results.append((shown, None if arguments.csv is None else complete))
        except DataError as error:
            results.append(program.labelled(error))


def _rank(
    programs: Sequence[Program], arguments: argparse.Namespace, folder: str
) -> Iterator[dict[str, Any] | DataError]:
    """Rank the graphs of all programs; the error of a file or a graph takes the place of its ranking."""
    if not programs:
        return
    from hlorank.compute import SERIAL, map_graphs

    _opened.cache_clear()  # the model may have changed
    compute = SERIAL
    if (workers := min(arguments.workers, len(programs))) > 1:
        compute = SERIAL.model_copy(update={"form": "processes", "workers": workers, "retries": 2})
    outputs = [output for output in (arguments.save, arguments.export) if output is not None]
    collection = _opened(folder, arguments.memory, arguments.accelerator).collection
    rank_program = partial(_rank_program, arguments=arguments, folder=folder)
    with submission(arguments.csv, collection) as submit:
        ranked = map_graphs(rank_program, programs, compute, "Ranking", outputs=outputs)
        for program, results in zip(programs, ranked, strict=True):
            for result in results:
                if isinstance(result, DataError):
                    yield result
                    continue
                shown, order = result
                try:
                    if order is not None:
                        submit(shown["graph"], order)
                except DataError as error:  # a graph that the submission refuses gets no ranking
                    yield program.labelled(error)
                else:
                    yield shown


def run(arguments: argparse.Namespace) -> int:
    """Rank every input, and print tables, JSON, CSV or a submission, also of the graphs before an error of writing."""
    from hlorank.runs.find import model_folder

    _check(arguments)
    folder = None if arguments.model is None else model_folder(arguments.model)  # here, so that it is downloaded once
    backend = "cpu" if folder is None else collection_of(folder)[1]
    programs, errors = find_programs(arguments.input, arguments.dump, arguments.arguments, backend)
    if folder is None and programs:
        folder, card = fitting_ranker(program.path for program in programs)
        arguments.model = card.name
        sys.stderr.write(f"ranked by {card}; --model takes another\n")
    collection = "" if folder is None else collection_of(folder)[0]
    if arguments.save is not None or arguments.export is not None:
        check_names(program.path for program in programs if program.path.suffix != ".npz")
    graphs: list[dict[str, Any]] = []
    left_out: list[DataError] = []
    complete = False
    try:
        for ranked in _rank(programs, arguments, str(folder)):
            if isinstance(ranked, NothingToConfigureError):
                left_out.append(ranked)
            elif isinstance(ranked, DataError):
                errors.append(ranked)
            else:
                graphs.append(ranked)
        complete = True
    finally:  # the bar has ended, which errors and tables would interrupt
        for notice in left_out:
            _log.warning("left out: %s", notice)
        other_stage = False
        if graphs:
            from hlorank.ranking.ranked import warn_of_stages  # imports PyTorch, as their ranking did

            other_stage = warn_of_stages(graphs, collection)
        sys.stderr.writelines(f"error: {error}\n" for error in errors)
        if graphs or complete:
            print_rankings(graphs, arguments)
    if left_out and not graphs and not errors:
        raise DataError("INPUT", "a program to configure", f"none in {counted(len(left_out), 'dump')}")
    return 2 if errors else _STATUS_OTHER_STAGE if other_stage else 0
