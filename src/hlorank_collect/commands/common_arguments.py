"""Arguments, checks and reports that the commands share. They import no jax, so that `hlorank --help` is fast."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hlorank.cli.programs import FORMS, HELP, find_programs, is_function
from hlorank.config import ConfigError
from hlorank.hlo.reader import DUMPS
from hlorank_collect.jax_program import INSTALL, has_jax
from hlorank_collect.task import is_file
from hlorank_collect.zoo import programs

_log = logging.getLogger(__name__)


def add_command(
    commands: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,  # noqa: A002 (as argparse calls it)
    description: str,
) -> argparse.ArgumentParser:
    """Add a subcommand that needs jax, and return its parser; without jax the help names the line that installs it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help if has_jax() else f"{help} (needs jax: {INSTALL})",
        description=f"{description} Needs jax: {INSTALL}.",
    )
    parser.set_defaults(run=run)
    return parser


def add_program_arguments(group: argparse._ArgumentGroup) -> None:
    """Add PROGRAM..., --arguments, --dump and --scale-batch."""
    group.add_argument("program", nargs="*", metavar="PROGRAM", help=f"a name of the zoo; {HELP}")
    group.add_argument(
        "--arguments",
        metavar="SHAPES",
        help="example arguments of module:function: their shapes, such as 'f32[8,128] s32[8]', or module:name of a "
        "tuple of them, or of a function that returns one",
    )
    group.add_argument(
        "--dump",
        default=DUMPS[1],
        metavar="STAGE",
        help="stage that is taken of the dumps in a folder: the end of its name (default: %(default)s)",
    )
    group.add_argument(
        "--scale-batch",
        type=int,
        metavar="N",
        help="batch of the programs in files, in place of their own; a program in which a shape does not follow is "
        "left out",
    )


def add_machine_arguments(group: argparse._ArgumentGroup) -> None:
    """Add --core, --hang-seconds and --allow-busy."""
    group.add_argument("--core", type=int, metavar="N", help="CPU core to measure on (default: the last one)")
    group.add_argument(
        "--hang-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit of one compilation (default: 300)",
    )
    group.add_argument("--allow-busy", action="store_true", help="measure on a busy machine, with a warning")


def check_arguments(arguments: argparse.Namespace, min_values: Mapping[str, float]) -> None:
    """Check the arguments of both groups, and that numbers are large enough.

    Args:
        arguments: the parsed arguments.
        min_values: name of an argument -> smallest value.

    Raises:
        ConfigError: a number is too small, the machine has no core `--core`, or a program and --arguments do not fit
            together.
    """
    for name, min_value in min_values.items():
        if (value := getattr(arguments, name)) < min_value:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: expected at least {min_value}")
    if arguments.scale_batch is not None and arguments.scale_batch < 1:
        raise ConfigError(f"--scale-batch {arguments.scale_batch}: expected at least 1")
    cores = os.sched_getaffinity(0)
    if arguments.core is not None and arguments.core not in cores:
        raise ConfigError(f"--core {arguments.core}: expected one of {sorted(cores)}")
    for program in arguments.program:
        _check_known(program)
        if is_function(program) != (arguments.arguments is not None):
            remedy = "takes no --arguments" if arguments.arguments is not None else "needs --arguments"
            raise ConfigError(
                f"program {program!r}: {remedy}; module:function needs them, a program of the zoo has its own, and "
                "those of a file are drawn"
            )


def _check_known(program: str) -> None:
    """Check that a program is in the zoo, a file, a folder, a glob or `module:function`.

    Raises:
        ConfigError: it is none of these; the message has similar names of the zoo, or the forms.
    """
    path = Path(program)
    known = is_function(program) or program == "-" or program in programs() or path.exists()
    if (known and path.suffix != ".py") or any(letter in program for letter in "*?["):
        return
    if (near := get_close_matches(program, programs(), n=3, cutoff=0.7)) and not path.exists():
        raise ConfigError(f"program {program!r}: not in the zoo; did you mean {', '.join(near)}?")
    raise ConfigError(f"program {program!r}: expected a name of the zoo, {FORMS}; hlorank collect --list shows the zoo")


def program_names(arguments: argparse.Namespace) -> list[str]:
    """Return PROGRAM..., each once; of folders and globs, and of the standard input, the paths of their files.

    Raises:
        DataError: a folder or a glob has no program.
    """
    names: list[str] = []
    for program in arguments.program:
        if is_function(program) or program in programs():
            names.append(program)
            continue
        found, errors = find_programs([program], arguments.dump, None)
        for error in errors:
            raise error
        names += (str(one.path) for one in found)
    return list(dict.fromkeys(names))


def check_output(folder: Path) -> None:
    """Check, before anything is measured, that files can be written to a folder; it is not created.

    Raises:
        ConfigError: the folder, or one above it, is a file.
        OSError: files cannot be written there; `filename` has the folder.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"--out {folder}: {'' if existing == folder else f'{existing} is '}not a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        error.filename = str(folder)
        raise


def program_fields(arguments: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """Return the fields of a task that identify the program, for each name.

    Raises:
        ConfigError: there is --scale-batch, and no file.
    """
    scaled = {name for name in names if is_file(name)}
    if arguments.scale_batch is not None and not scaled:
        raise ConfigError("--scale-batch: only for programs in files; of the zoo and of functions, the code has it")
    return [
        {
            "program": name,
            "arguments": arguments.arguments if is_function(name) else None,
            "scale_batch": arguments.scale_batch if name in scaled else None,
        }
        for name in names
    ]


def measuring_core(arguments: argparse.Namespace) -> int:
    """Return the CPU core to measure on."""
    core: int = max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core
    return core


def supervision(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `run_tasks`."""
    from hlorank_collect.machine import require_quiet

    return {
        "hang_seconds": arguments.hang_seconds,
        "echo": lambda text: print(text, flush=True),  # noqa: T201 (the output of the command)
        "check_machine": _warn_if_busy if arguments.allow_busy else require_quiet,
    }


def _warn_if_busy() -> None:
    from hlorank_collect.machine import require_quiet

    try:
        require_quiet()
    except ConfigError as error:
        _log.warning("%s; measuring anyway", str(error).partition(",")[0])


def status(left_out: Mapping[str, str]) -> int:
    """Name the programs that were left out on standard error; return 1 if there are any, else 0."""
    for name, why in left_out.items():
        sys.stderr.write(f"error: {name}: {why}\n")
    return 1 if left_out else 0
