"""What the commands that measure programs have in common: checks of their arguments, and how they report."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from hlorank.config import ConfigError

_log = logging.getLogger(__name__)


def add_program_arguments(group: argparse._ArgumentGroup) -> None:
    """Adds PROGRAM... and --arguments."""
    group.add_argument("program", nargs="*", metavar="PROGRAM", help="a name of the zoo, or module:function")
    group.add_argument(
        "--arguments",
        help="example arguments of module:function: their shapes, such as 'f32[8,128] s32[8]', or the module:function "
        "that returns them as a tuple",
    )


def add_machine_arguments(group: argparse._ArgumentGroup) -> None:
    """Adds --core, --hang-seconds and --allow-busy."""
    group.add_argument("--core", type=int, metavar="N", help="the core to measure on (default: the last one)")
    group.add_argument(
        "--hang-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="a compilation that takes longer is given up (default: 300)",
    )
    group.add_argument("--allow-busy", action="store_true", help="measure on a busy machine, with a warning")


def check_arguments(arguments: argparse.Namespace, least_values: Mapping[str, float]) -> None:
    """Makes sure of what both groups hold, and that numbers are large enough.

    Raises:
        ConfigError: a value makes no sense.
    """
    for name, least in least_values.items():
        if (value := getattr(arguments, name)) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: expected at least {least}")
    cores = os.sched_getaffinity(0)
    if arguments.core is not None and arguments.core not in cores:
        raise ConfigError(f"--core {arguments.core}: expected one of {sorted(cores)}")
    for program in arguments.program:
        if (":" in program) != (arguments.arguments is not None):
            remedy = "takes no --arguments" if arguments.arguments is not None else "needs --arguments"
            raise ConfigError(f"program {program!r}: {remedy}; module:function needs them, a name of the zoo has them")


def named(arguments: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """The fields of a task that say which program, for each name."""
    return [{"program": name, "arguments": arguments.arguments if ":" in name else None} for name in names]


def measuring_core(arguments: argparse.Namespace) -> int:
    """The core to measure on."""
    core: int = max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core
    return core


def reporting(arguments: argparse.Namespace) -> dict[str, Any]:
    """How `collect_programs` watches over the child processes, and tells of them."""
    from hlorank_collect.busy import require_quiet

    return {
        "hang_seconds": arguments.hang_seconds,
        "echo": lambda text: print(text, flush=True),  # noqa: T201 (what the command is asked for)
        "check_machine": _warn_if_busy if arguments.allow_busy else require_quiet,
    }


def _warn_if_busy() -> None:
    from hlorank_collect.busy import require_quiet

    try:
        require_quiet()
    except ConfigError as error:
        _log.warning("%s; measuring all the same", str(error).partition(",")[0])


def status(left_out: Mapping[str, str]) -> int:
    """Names the programs that were left out on standard error; 1 if there are some, else 0."""
    for name, why in left_out.items():
        sys.stderr.write(f"error: {name}: {why}\n")
    return 1 if left_out else 0
