"""Arguments, checks and reports that the commands share. They import no jax, so that `hlorank --help` is fast."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hlorank.cli.programs import HELP, add_arguments, find_programs, is_function
from hlorank.config import ConfigError
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.xla_process import INSTALL, has_jaxlib
from hlorank.terminal import add_number
from hlorank_collect import machine
from hlorank_collect.xla import TPUS

_log = logging.getLogger(__name__)


def add_command(
    commands: argparse._SubParsersAction[Any],
    run: Callable[[argparse.Namespace], int],
    name: str,
    does: str,
    about: str,
) -> argparse.ArgumentParser:
    """Add a subcommand that needs jax, and return its parser; without jax the help names the line that installs it."""
    short = does if has_jaxlib() else f"{does} (needs jax: {INSTALL})"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=short, description=f"{about} Needs jax: {INSTALL}."
    )
    parser.set_defaults(run=run)
    return parser


def add_program_arguments(group: argparse._ArgumentGroup) -> None:
    """Add PROGRAM..., --arguments and --dump."""
    group.add_argument("program", nargs="*", metavar="PROGRAM", help=HELP)
    add_arguments(group)
    group.add_argument(
        "--dump",
        default=DUMPS[1],
        metavar="STAGE",
        help="stage that is taken of the dumps in a folder: the end of its name (default: %(default)s)",
    )


def add_machine_arguments(group: argparse._ArgumentGroup) -> None:
    """Add --core, --hang-seconds and --allow-busy."""
    group.add_argument("--core", type=int, metavar="N", help="CPU core to measure on (default: the last one)")
    add_number(group, "--hang-seconds", 300, "CPU time limit of one compilation", metavar="SECONDS")
    group.add_argument("--allow-busy", action="store_true", help="measure on a busy machine, with a warning")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Check the arguments of both groups."""
    cores = os.sched_getaffinity(0)
    if arguments.core is not None and arguments.core not in cores:
        raise ConfigError(f"--core {arguments.core}: expected one of {sorted(cores)}")
    if not arguments.program:
        raise ConfigError("no program: name a file, a folder, or a JAX function as module:function")
    if arguments.arguments is not None and not any(map(is_function, arguments.program)):
        found = ", ".join(map(repr, arguments.program))
        raise ConfigError(f"--arguments: only for module:function, such as mymod:step; found {found}")


def check_output(folder: Path) -> None:
    """Check, before anything is measured, that files can be written to a folder; it is not created."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"--out {folder}: {'' if existing == folder else f'{existing} is '}not a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        error.filename = str(folder)
        raise


def program_fields(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the fields of a task that identify the program, once for each function and each file of PROGRAM..."""
    fields: dict[str, dict[str, Any]] = {}
    for program in arguments.program:
        if is_function(program):
            fields[program] = {"program": program, "arguments": arguments.arguments}
            continue
        found, errors = find_programs([program], arguments.dump, None)
        if errors:
            raise errors[0]
        for path in (str(file.path) for file in found):
            fields[path] = {"program": path, "arguments": None}
    return [*fields.values()]


def task_settings(arguments: argparse.Namespace, collection: str) -> dict[str, Any]:
    """Return the fields of a task that do not depend on the program."""
    names = ("configurations", "seed", "rounds", "time_limit", "core")
    settings = {name: getattr(arguments, name) for name in names}
    return {"collection": collection, "output": str(arguments.out), **settings}


def supervision(arguments: argparse.Namespace, *backends: str) -> dict[str, Any]:
    """Return the keyword arguments of `run_tasks`; other work does not change estimates."""
    from hlorank_collect.program import require_device

    estimates = all(backend in TPUS for backend in backends)
    check = _warn_if_busy if arguments.allow_busy else machine.require_quiet
    return {
        "hang_seconds": arguments.hang_seconds,
        "echo": lambda text: print(text, flush=True),  # noqa: T201 (the output of the command)
        "check_machine": partial(require_device, *backends[:1]) if estimates else check,
    }


def _warn_if_busy() -> None:
    try:
        machine.require_quiet()
    except ConfigError as error:
        _log.warning("%s; measuring anyway", str(error).partition(",")[0])


def status(left_out: Mapping[str, str]) -> int:
    """Name the programs that were left out on standard error; return 1 if there are any, else 0."""
    sys.stderr.writelines(f"error: {name}: {why}\n" for name, why in left_out.items())
    return 1 if left_out else 0
