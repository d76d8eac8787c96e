"""`hlorank autotune`: search for a faster layout configuration of a program, guided by a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError
from hlorank.config.section import read_section
from hlorank.files import SPEC, DataError, read_json
from hlorank.hlo.layout_json import EXPECTED, ModuleConfiguration
from hlorank_collect.commands import common

if TYPE_CHECKING:
    from hlorank_collect.task import Task

_MIN = {"candidates": 1, "top": 1, "rounds": 4, "seconds": 1, "hang_seconds": 1}
_CANDIDATE_OPTIONS = {
    "candidates": (
        1024,
        "N",
        "configurations that the model scores, fewer where the program has no more (default: 1024)",
    ),
    "seed": (0, "N", "seed of candidates, of rounds, and of the inputs of files (default: 0)"),
}
_BUDGET_OPTIONS = {
    "top": (10, "K", "candidates compiled and measured (default: 10)"),
    "seconds": (600.0, "S", "time per program; no new candidate is tried after 70 %% of it (default: 600)"),
}
_ROUND_OPTIONS = {"rounds": (40, "N", "rounds of the finalists and the default (default: 40)")}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = common.add_command(
        commands,
        "autotune",
        run,
        does="find a faster layout configuration of a program with a trained model",
        description=(
            "Searches for promising layout configurations of a program with a trained model, compiles and measures the "
            "most promising ones next to the compiler's default, and saves the fastest one. One whose outputs "
            "differ from the default's cannot win; where none is faster beyond noise, the default wins."
        ),
    )
    what = parser.add_argument_group("programs")
    common.add_program_arguments(what)
    what.add_argument(
        "--remeasure",
        nargs="+",
        type=Path,
        metavar="FILE",
        default=[],
        help="do not tune: run the programs of these saved files and measure them again next to the default",
    )
    what.add_argument(
        "--apply",
        type=Path,
        metavar="FILE",
        help="do not search: measure PROGRAM with the configuration that hlorank rank --export wrote to FILE, next to "
        "the default",
    )
    how = parser.add_argument_group("candidates")
    how.add_argument(
        "--model",
        metavar="MODEL",
        help="a trained model that ranks layouts: a model folder, an MLflow run id, or models:/<name>@champion",
    )
    how.add_argument("--random", action="store_true", help="no model: measure random candidates, as a baseline")
    common.add_options(how, _CANDIDATE_OPTIONS)
    common.add_options(parser.add_argument_group("budget"), _BUDGET_OPTIONS)
    measuring = parser.add_argument_group("measurement")
    measuring.add_argument("--platform", choices=("cpu", "gpu"), default="cpu", help="XLA's backend (default: cpu)")
    common.add_options(measuring, _ROUND_OPTIONS)
    common.add_machine_arguments(measuring)
    parser.add_argument(
        "--out", type=Path, default=Path("tuned"), metavar="DIR", help="folder of the saved files (default: tuned)"
    )


def _check(arguments: argparse.Namespace) -> None:
    """Check arguments before anything is measured."""
    common.check_arguments(arguments, _MIN)
    if arguments.program and arguments.remeasure:
        raise ConfigError("give programs to tune, or --remeasure with saved files, not both")
    if not arguments.program and not arguments.remeasure:
        raise ConfigError("name the programs to tune, or give --remeasure with saved files")
    if arguments.apply is not None:
        if len(arguments.program) != 1:
            raise ConfigError(f"--apply {arguments.apply}: name the one program that it is for")
        if arguments.random or arguments.model is not None:
            raise ConfigError("--apply measures one configuration: give no --model and no --random")
        read_section(ModuleConfiguration, arguments.apply, EXPECTED)
    if arguments.program:
        common.check_output(arguments.out)


def _model(arguments: argparse.Namespace) -> str | None:
    """Return the folder of the model, None for --random; raise ConfigError if there is no model of layouts."""
    from hlorank.runs.find import model_folder

    remedy = "give a trained model of layouts, such as models/layout/cpu/random/gst of make repro"
    if arguments.random:
        if arguments.model is not None:
            raise ConfigError("give --model or --random, not both")
        return None
    if arguments.model is None:
        raise ConfigError(f"--model is missing: {remedy}, or --random to try candidates in random order")
    try:
        folder = model_folder(arguments.model)
        address = read_json(folder / SPEC).get("collection", "")
    except DataError as error:
        raise ConfigError(f"--model {error}; {remedy}") from None
    if not str(address).startswith("layout:"):
        raise ConfigError(f"--model {arguments.model}: it ranks configurations of {address or 'nothing'}; {remedy}")
    return str(folder)


def run(arguments: argparse.Namespace) -> int:
    """Tune programs; those that fail are named at the end, and the status is then 1."""
    from hlorank_collect.autotune.tuned import ApplyTask, TuneTask, remeasure_tasks
    from hlorank_collect.program import require_device, require_jax
    from hlorank_collect.run_tasks import run_tasks

    require_jax()
    _check(arguments)
    search = bool(arguments.program) and arguments.apply is None
    model = _model(arguments) if search else None  # before any program is compiled
    require_device(arguments.platform)
    settings: dict[str, Any] = {
        "collection": f"layout:{arguments.platform}:random",
        "output": str(arguments.out),
        "configurations": arguments.candidates,
        "seed": arguments.seed,
        "rounds": arguments.rounds,
        "fast_compile": False,
        "time_limit": arguments.seconds,
        "core": arguments.core,
    }
    tasks: Sequence[Task]
    broken: dict[str, str] = {}
    programs = common.program_fields(arguments)
    if arguments.remeasure:
        tasks, broken = remeasure_tasks(arguments.remeasure, settings)
    elif arguments.apply is not None:
        if len(programs) != 1:
            raise ConfigError(f"--apply {arguments.apply}: expected one program, found {len(programs)}")
        tasks = [ApplyTask(**program, **settings, applied=str(arguments.apply)) for program in programs]
    else:
        settings |= {"model": model, "reference": arguments.model, "budget": arguments.top}
        tasks = [TuneTask(**program, **settings) for program in programs]
    left_out = run_tasks(tasks, **common.supervision(arguments)).left_out if tasks else {}
    return common.status(broken | left_out)
