"""`hlorank rank`: rank the configurations of programs from fastest to slowest by a trained model."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache, partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.cli.programs import HELP, add_program_options, is_function, program_paths
from hlorank.cli.ranking_table import print_ranking, write_changes
from hlorank.config import ComputeConfig, ConfigError
from hlorank.data.collection import Collection
from hlorank.files import DataError, counted, write_text
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.convert import check_names
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.stage import TRAINED, named_stage
from hlorank.terminal import add_table_options, min_int

if TYPE_CHECKING:
    from hlorank.ranking.ranker import Ranker

_log = logging.getLogger(__name__)

_STATUS_OTHER_STAGE = 3
_OTHER_STAGE = (
    "%s: a module of the stage %s; the model was trained on modules of the stage %s, so that the ranking means nothing "
    "for the program; XLA dumps the right module with --xla_dump_hlo_pass_re=layout-assignment%s"
)
_COMPILED = "%s: compiled for a CPU up to layout assignment, because the model was trained on modules of the stage %s%s"
_NO_STAGE = f"; if it is of this stage already, rank it with --dump {DUMPS[0]}"
_UNKNOWN_STAGE = "%s: taken as a module of the stage %s, as nothing says that it is not; it was not compiled: %s"


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "rank",
        help="rank the configurations of programs with a trained model",
        description=(
            "Ranks the configurations in npz files and tuning records from fastest to slowest, by a trained model. "
            "For the dump of a program, which holds no configurations, candidates are drawn. Nothing is run. For a "
            "model of layouts on a CPU, a module before XLA's passes is compiled up to layout assignment, with a "
            "notice; this needs jax. Dumps with nothing to configure are left out with a notice. Files that cannot be "
            "ranked are named, the others are ranked, and the exit status is 2. It is 3 if a dump is ranked that is "
            "not of the stage that the model was trained on, which is named."
        ),
    )
    parser.add_argument(
        "input",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help=f"an npz file or tuning records; {HELP}",
    )
    add_program_options(parser)
    add_model_arguments(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=min_int(1),
        default=1,
        metavar="N",
        help="files that are ranked at the same time, each in a process with one thread and with --memory of its own "
        "(default: 1, with a thread for each core)",
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="rank on the nodes of a Ray cluster, a file on each of their CPUs at a time, or on each GPU with "
        "--accelerator cuda; auto is the cluster of this machine (needs the extra ray)",
    )
    parser.add_argument(
        "--max-configurations",
        type=min_int(1),
        default=1_000_000,
        metavar="N",
        help="refuse a graph with more configurations before reading them (default: 1000000)",
    )
    shown = parser.add_argument_group("output")
    shown.add_argument(
        "--top", type=min_int(1), default=10, metavar="N", help="configurations that are shown (default: 10)"
    )
    shown.add_argument(
        "--compare",
        action="store_true",
        help="compare with the runtimes in the files: Kendall tau, slowdown of the first configurations",
    )
    add_table_options(shown, "graph")
    shown.add_argument(
        "--csv", metavar="FILE", help="write complete rankings as a Kaggle submission; - prints it instead of a table"
    )
    shown.add_argument(
        "--changes",
        metavar="FILE",
        help="write the layouts that the first configurations change, by instruction, as CSV; - prints it instead of a "
        "table",
    )
    shown.add_argument(
        "--choose",
        type=min_int(1),
        default=1,
        metavar="RANK",
        help="rank of the configuration whose layouts are shown below the table, and exported (default: 1)",
    )
    drawn = parser.add_argument_group("candidates of a dump")
    drawn.add_argument(
        "--candidates",
        type=min_int(1),
        default=256,
        metavar="N",
        help="layout configurations that are drawn, the first one the compiler's default (default: 256)",
    )
    drawn.add_argument("--seed", type=min_int(0), default=0, metavar="N", help="seed of the candidates (default: 0)")
    drawn.add_argument("--save", type=Path, metavar="DIR", help="write the candidates to DIR/<graph>.npz")
    drawn.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write the configuration of rank --choose to DIR: as JSON, <graph>.json, for hlorank.apply_configuration, "
        "and as HLO with layout constraints, <graph>.hlo.pb and, with jaxlib, <graph>.hlo.txt",
    )
    parser.set_defaults(run=run)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that exclude each other, and paths of the wrong kind.

    Raises:
        ConfigError: two options print to the standard output, --csv or --changes is a folder, --save or --export is
            a file, or --choose is beyond --top.
        DataError: with --save or --export, two files give graphs of the same name, which would be one file.
    """
    if [arguments.csv == "-", arguments.changes == "-", arguments.json].count(True) > 1:
        raise ConfigError("give one of --json, --csv - and --changes -: each needs the standard output for itself")
    for option in ("csv", "changes"):
        target = getattr(arguments, option)
        if target is not None and Path(target).is_dir():
            raise ConfigError(f"--{option} {target}: a folder; name a file")
    if arguments.choose > arguments.top:
        raise ConfigError(f"--choose {arguments.choose}: expected one of the first --top {arguments.top}")
    folders = {"--save": arguments.save, "--export": arguments.export}
    for option, folder in folders.items():
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ConfigError(f"{option} {folder}: not a folder")
    if any(folders.values()):
        check_names(path for path in arguments.input if path.suffix != ".npz")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that scores configurations."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a model folder, an MLflow run id, or models:/<name>@champion",
    )
    parser.add_argument(
        "--memory",
        type=min_int(1),
        default=256,
        metavar="MIB",
        help="limit of the memory of activations while scoring (default: %(default)s)",
    )
    parser.add_argument(
        "--accelerator",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device; auto is CUDA where PyTorch finds it (default: %(default)s)",
    )


def open_ranker(model: str, memory_mib: int, accelerator: str) -> Ranker:
    """Return the ranker of a model, with a warning if the model was never trained.

    Args:
        model: a reference of `hlorank.runs.find.model_folder`.
        memory_mib: limit of the memory of activations while scoring, in MiB.
        accelerator: auto, cpu or cuda.

    Raises:
        ConfigError: there is no such accelerator.
        DataError: the model does not exist, is damaged or changed, or another version of hlorank wrote it.
    """
    from hlorank.runs.find import model_folder

    folder = model_folder(model)  # before PyTorch is imported, which takes seconds
    from hlorank.ranking.ranker import Ranker

    ranker = Ranker(folder, memory_mib * 2**20, accelerator)
    if ranker.spec.steps == 0:
        _log.warning("%s: the model was never trained; its scores are meaningless", model)
    return ranker


Submit = Callable[[str, NDArray[np.int64]], None]


@contextmanager
def _submission(target: str | None, collection: Collection) -> Iterator[Submit]:
    """Return a function that adds the ranking of a graph to the submission, or does nothing without `target`."""
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


class _Ranked(NamedTuple):
    """One graph, ranked.

    Attributes:
        name: its name.
        order: (configurations,) int64, the ranking; None if there is no submission.
        shown: what is printed.
    """

    name: str
    order: NDArray[np.int64] | None
    shown: dict[str, Any]


@lru_cache(maxsize=1)
def _opened(folder: str, memory_mib: int, accelerator: str, threads: int | None) -> Ranker:
    """Return the ranker of a model, which each process opens once."""
    ranker = open_ranker(folder, memory_mib, accelerator)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return ranker


def _rank_file(
    path: Path, arguments: argparse.Namespace, folder: str, threads: int | None
) -> list[_Ranked | DataError]:
    """Rank the graphs of a file, and write their exports and candidates; an error takes the place of its ranking.

    Raises:
        OSError: the candidates or an exported configuration cannot be written.
    """
    from hlorank.cli.export import export
    from hlorank.data.collection import write_graph
    from hlorank.metrics import ranking
    from hlorank.ranking.inputs import GraphReader
    from hlorank.ranking.result import ranked_input

    ranker = _opened(folder, arguments.memory, arguments.accelerator, threads)
    reader = GraphReader(ranker.spec.features, arguments.max_configurations, arguments.candidates, arguments.seed)
    # The module of a function is at the right stage, and --dump says of which stage the user's modules are.
    graphs = reader.read(path, compile_dumps=arguments.dump is None and not is_function(str(path)))
    results: list[_Ranked | DataError] = []
    while True:
        try:
            if (given := next(graphs, None)) is None:
                return results
            measured = given.measured
            scores = ranker.score(measured.graph, measured.configurations, given.extra, name=measured.name)
            order = ranking(scores)
            ranked = ranked_input(given, scores, order, arguments.top, compare=arguments.compare)
            if arguments.export is not None:
                if (found := len(ranked["top"])) < arguments.choose:
                    raise DataError("--choose", f"at most {found}, the number of configurations", arguments.choose)
                chosen = ranked["top"][arguments.choose - 1]
                files = export(arguments.export, given, chosen, arguments.model, str(ranker.collection))
                ranked["exported"] = [*map(str, files)]
            if given.drawn and arguments.save is not None:
                write_graph(arguments.save / f"{measured.name}.npz", measured)
            results.append(_Ranked(measured.name, None if arguments.csv is None else order, ranked))
        except DataError as error:
            results.append(error if error.file is not None else error.in_file(path))


def _ranked(arguments: argparse.Namespace) -> Iterator[dict[str, Any] | DataError]:
    """Rank the graphs of all inputs; the error of a file or a graph takes the place of its ranking.

    Raises:
        ComputeError: a file ended its worker process in each attempt.
        ConfigError: the cluster cannot be used.
        DataError: the model does not exist or is damaged, or the submission cannot be continued.
        OSError: the submission, the candidates or an exported configuration cannot be written.
    """
    if not arguments.input:
        return
    from hlorank.compute import SERIAL, map_graphs
    from hlorank.runs.find import model_folder

    folder = str(model_folder(arguments.model))  # here, so that it is downloaded once
    _opened.cache_clear()  # the model may have changed
    workers = min(arguments.workers, len(arguments.input))
    threads = None if workers == 1 and arguments.ray is None else 1
    if arguments.ray is None:
        own = {"form": "serial" if workers == 1 else "processes", "workers": workers, "retries": 2}
        compute = SERIAL.model_copy(update=own)
        here = arguments.accelerator
    else:
        compute = ComputeConfig.of_cluster(arguments.ray, gpus=arguments.accelerator == "cuda")
        here = "cpu"  # this process scores nothing
        if arguments.accelerator == "auto":
            arguments.accelerator = "cpu"  # a node must not use a GPU that its task does not take
    outputs = [output for output in (arguments.save, arguments.export) if output is not None]
    collection = _opened(folder, arguments.memory, here, threads).collection
    rank_file = partial(_rank_file, arguments=arguments, folder=folder, threads=threads)
    with (
        _submission(arguments.csv, collection) as submit,
        redirect_stdout(sys.stderr),  # Ray prints there what happens to nodes, before the JSON
    ):
        ranked = map_graphs(rank_file, arguments.input, compute, "Ranking", outputs=outputs)
        for path, results in zip(arguments.input, ranked, strict=True):
            for result in results:
                if isinstance(result, DataError):
                    yield result
                    continue
                try:
                    if result.order is not None:
                        submit(result.name, result.order)
                except DataError as error:  # a graph that the submission refuses gets no ranking
                    yield error if error.file is not None else error.in_file(path)
                else:
                    yield result.shown


def _print(graphs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps(graphs, indent=2, allow_nan=False) + "\n")
    elif "-" not in (arguments.csv, arguments.changes):
        for place, ranked in enumerate(graphs):
            sys.stdout.write("\n" if place else "")
            print_ranking(ranked, arguments.choose, arguments.wide)
    if arguments.changes == "-":
        write_changes(sys.stdout, graphs)
    elif arguments.changes is not None:
        text = StringIO()
        write_changes(text, graphs)
        write_text(Path(arguments.changes), text.getvalue())


def run(arguments: argparse.Namespace) -> int:
    """Rank every input, and print tables, JSON, CSV or a submission.

    Dumps with nothing to configure are left out with a notice.

    Returns:
        2 if a file cannot be ranked; else 3 if a dump is of another stage than the model was trained on; else 0.

    Raises:
        ConfigError: options exclude each other, a path is of the wrong kind, or a JAX function does not trace.
        DataError: the model does not exist or is damaged, the submission cannot be continued, or no input has anything
            to configure; the graphs ranked before are printed.
        OSError: the submission or the candidates cannot be written; the graphs ranked before are printed.
    """
    arguments.input, errors = program_paths(arguments.input, arguments.dump, arguments.arguments)
    _check(arguments)
    graphs: list[dict[str, Any]] = []
    left_out: list[DataError] = []
    complete = False
    try:
        for ranked in _ranked(arguments):
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
        staged = [(ranked["file"], ranked["stage"]) for ranked in graphs if ranked["stage"] is not None]
        for file, stage in staged:
            if stage["compiled"]:
                _log.warning(_COMPILED, file, TRAINED, _NO_STAGE if named_stage(Path(file)) is None else "")
            elif stage["found"] != TRAINED:
                reason = f"; not compiled: {stage['not_compiled']}" if stage["not_compiled"] else ""
                _log.warning(_OTHER_STAGE, file, stage["found"], TRAINED, reason)
            elif stage["not_compiled"]:
                _log.warning(_UNKNOWN_STAGE, file, TRAINED, stage["not_compiled"])
        sys.stderr.writelines(f"error: {error}\n" for error in errors)
        if graphs or complete:
            _print(graphs, arguments)
    if left_out and not graphs and not errors:
        raise DataError("INPUT", "a program to configure", f"none in {counted(len(left_out), 'dump')}")
    if errors:
        return 2
    return _STATUS_OTHER_STAGE if any(stage["found"] != TRAINED for _, stage in staged) else 0
