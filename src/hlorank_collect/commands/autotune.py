"""`hlorank autotune`: search for a faster layout configuration of a program, guided by a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hlorank.cli.programs import collection_of
from hlorank.cli.rank_output import print_changes
from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank.ranking.rankers import cards
from hlorank.terminal import add_number
from hlorank_collect.commands import common
from hlorank_collect.xla import TPUS


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = common.add_command(
        commands,
        run,
        "autotune",
        "find a faster layout configuration of a program with a trained model",
        "Searches for promising layout configurations of a program with a trained model, compiles and measures the "
        "most promising ones next to the compiler's default, and saves the fastest one. One whose outputs differ from "
        "the default's cannot win; where none is faster beyond noise, the default wins.",
    )
    common.add_program_arguments(parser.add_argument_group("programs"))
    how = parser.add_argument_group("configurations")
    choice = how.add_mutually_exclusive_group()
    choice.add_argument(
        "--model",
        metavar="MODEL",
        help="a trained model that ranks layouts: a model folder, an MLflow run id, or models:/<name>@champion; by "
        "default the ranker of hlorank for the backend",
    )
    choice.add_argument("--random", action="store_true", help="no model: measure random candidates, as a baseline")
    choice.add_argument(
        "--apply",
        type=Path,
        metavar="FILE",
        help="do not search: measure PROGRAM with the configuration that hlorank rank --export, or autotune itself, "
        "wrote to FILE, next to the default",
    )
    scored = "configurations that the model scores, fewer where the program has no more"
    add_number(how, "--candidates", 1024, scored, dest="configurations")
    add_number(how, "--seed", 0, "seed of candidates, of rounds, and of the inputs of files", 0)
    budget = parser.add_argument_group("budget")
    add_number(budget, "--top", 10, "candidates compiled and measured", metavar="K")
    limit = "time per program; no new candidate is tried after 70 %% of it"
    add_number(budget, "--seconds", 600, limit, metavar="S", dest="time_limit")
    measuring = parser.add_argument_group("measurement")
    measuring.add_argument(
        "--backend",
        type=lambda text: text.replace(":", "-"),
        choices=("cpu", "gpu", *TPUS),
        help="XLA's backend; tpu:v5e and others take the estimates of the compiler for TPUs, and need no TPU (default: "
        "that of the model's collection, or cpu)",
    )
    add_number(measuring, "--rounds", 40, "rounds of the finalists and the default", 4)
    common.add_machine_arguments(measuring)
    parser.add_argument(
        "--out", type=Path, default=Path("tuned"), metavar="DIR", help="folder of the saved files (default: tuned)"
    )


def _model(reference: str) -> tuple[str, str]:
    """Return the folder of the model, and its backend; raise ConfigError if there is no model of layouts."""
    from hlorank.runs.find import model_folder

    remedy = "give a trained model of layouts, such as models/layout/cpu/random/gst of make repro"
    try:
        folder = model_folder(reference)
        address, backend = collection_of(folder)
    except DataError as error:
        raise ConfigError(f"--model {error}; {remedy}") from None
    if not address.startswith("layout:"):
        raise ConfigError(f"--model {reference}: it ranks configurations of {address or 'nothing'}; {remedy}")
    return str(folder), backend


def _bundled(backend: str) -> str:
    """Return the name of the ranker of the package for layouts of a backend, else raise ConfigError."""
    for card in cards().values():
        if card.kind == "layout" and card.backend == backend:
            return card.name
    raise ConfigError(f"model: no ranker of hlorank is for layouts of {backend}; give one by --model, or --random")


def _print_winner(about: Mapping[str, Any]) -> None:
    if about["changes"]:
        print_changes(about["name"], about["changes"], "changes in the JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Tune programs; failed programs are named at the end, and the status is then 1."""
    from hlorank_collect.autotune.tuned import ApplyTask, TuneTask, read_chosen
    from hlorank_collect.program import require_device, require_jax
    from hlorank_collect.run_tasks import run_tasks

    require_jax()
    common.check_arguments(arguments)
    if arguments.apply is not None:
        read_chosen(arguments.apply)  # raises before anything is measured, as the next line does
    common.check_output(arguments.out)
    model, backend = None, arguments.backend or "cpu"
    if arguments.model is None and arguments.apply is None and not arguments.random:
        arguments.model = _bundled(backend)
    if arguments.model is not None:
        model, own = _model(arguments.model)  # before any program is compiled
        backend = arguments.backend or own
    require_device(backend)
    settings = common.task_settings(arguments, f"layout:{backend}:random")
    tasks: list[TuneTask] | list[ApplyTask]
    programs = common.program_fields(arguments)
    if arguments.apply is not None:
        if len(programs) != 1:
            raise ConfigError(f"--apply {arguments.apply}: expected one program, found {len(programs)}")
        tasks = [ApplyTask(**program, **settings, applied=str(arguments.apply)) for program in programs]
    else:
        settings |= {"model": model, "reference": arguments.model, "budget": arguments.top}
        tasks = [TuneTask(**program, **settings) for program in programs]
    supervision = common.supervision(arguments, *(task.platform for task in tasks))
    return common.status(run_tasks(tasks, **supervision, show=_print_winner))
