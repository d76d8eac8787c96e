"""`hlorank collect`: measures configurations of JAX programs on the XLA backend at hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank_collect.commands.programs import (
    add_machine_arguments,
    add_program_arguments,
    check_arguments,
    measuring_core,
    named,
    reporting,
    status,
)

_LEAST = {"configurations": 2, "kernels": 1, "max_rounds": 2, "time_limit": 1, "hang_seconds": 1}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "collect",
        help="measure layouts or tiles of JAX programs on the XLA backend at hand",
        description=(
            "Measures configurations of JAX programs, of the built-in zoo or your own, and writes them as npz files "
            "of the official schema, each beside a JSON file that says how it was measured. A program that was "
            "measured with the same settings is not measured again: to continue, give the same command. Needs "
            "jax: pip install 'hlorank[collect]'."
        ),
    )
    programs = parser.add_argument_group("programs")
    add_program_arguments(programs)
    programs.add_argument("--family", action="append", default=[], help="all programs of a family; may be repeated")
    programs.add_argument("--all", action="store_true", help="all programs of the zoo")
    programs.add_argument("--list", action="store_true", help="list the zoo, and measure nothing")
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--collection",
        default="layout:cpu:random",
        help="layout:<cpu|gpu>:<random|default> or tile:<cpu|gpu>; gpu is prepared and was never run on one "
        "(default: %(default)s)",
    )
    what.add_argument("--out", type=Path, metavar="DIR", help="the folder of the tree that the files go to")
    what.add_argument(
        "--configurations", type=int, default=64, metavar="N", help="of each program or kernel (default: 64)"
    )
    what.add_argument("--kernels", type=int, default=3, metavar="N", help="of each program, for tiles (default: 3)")
    what.add_argument("--seed", type=int, default=0, help="of configurations and rounds (default: 0)")
    how = parser.add_argument_group("how it is measured")
    how.add_argument(
        "--max-rounds",
        type=int,
        default=100,
        metavar="N",
        help="end here, even if two halves of the rounds agree at less than a Kendall tau of 0.9 (default: 100)",
    )
    how.add_argument(
        "--time-limit",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="of a program; configurations that it does not reach are left out (default: 1800)",
    )
    how.add_argument(
        "--fast-compile",
        action="store_true",
        help="compile without XLA's fusion emitters, in less than half of the time: other code, with other runtimes",
    )
    add_machine_arguments(how)
    parser.set_defaults(run=run)


def _list_zoo() -> None:
    from hlorank_collect.zoo import programs

    for program in programs().values():
        sys.stdout.write(f"{program.name}\n")


def _chosen(arguments: argparse.Namespace) -> list[str]:
    """The programs asked for, each once, in their order.

    Raises:
        ConfigError: there is no such family, or nothing was asked for.
    """
    from hlorank_collect.zoo import programs

    families = {program.family for program in programs().values()}
    if unknown := set(arguments.family) - families:
        raise ConfigError(f"--family {', '.join(sorted(unknown))}: expected one of {', '.join(sorted(families))}")
    wanted = families if arguments.all else set(arguments.family)
    names = [*arguments.program, *(program.name for program in programs().values() if program.family in wanted)]
    if not names:
        raise ConfigError("no program: name some, or give --family or --all; --list shows the zoo")
    return list(dict.fromkeys(names))


def _collection(address: str) -> Collection:
    collection = Collection.parse(address)
    if collection.source not in ("cpu", "gpu"):
        raise ConfigError(f"--collection {address}: expected the source cpu or gpu, what can be measured")
    return collection


def run(arguments: argparse.Namespace) -> int:
    """Measures; programs that can't be are named at the end, and the status is then 1.

    Raises:
        ConfigError: wrong usage.
    """
    if arguments.list:
        _list_zoo()
        return 0
    from hlorank_collect.collect import collect_layouts
    from hlorank_collect.program import require_device, require_jax
    from hlorank_collect.task import Task
    from hlorank_collect.tiles.collect_tiles import collect_tiles
    from hlorank_collect.tiles.tile_task import TileTask

    collection = _collection(arguments.collection)
    check_arguments(arguments, _LEAST)
    if arguments.out is None:
        raise ConfigError("--out is missing: the folder that the files go to")
    names = _chosen(arguments)
    require_jax()
    require_device(collection.source)
    settings: dict[str, Any] = {
        "collection": str(collection),
        "output": str(arguments.out),
        "configurations": arguments.configurations,
        "seed": arguments.seed,
        "rounds": arguments.max_rounds,
        "fast_compile": arguments.fast_compile,
        "time_limit": arguments.time_limit,
        "core": measuring_core(arguments),
    }
    programs, how = named(arguments, names), reporting(arguments)
    if collection.kind == "tile":
        summary = collect_tiles([TileTask(**one, **settings, kernels=arguments.kernels) for one in programs], **how)
    else:
        summary = collect_layouts([Task(**one, **settings) for one in programs], **how)
    return status(summary.left_out)
