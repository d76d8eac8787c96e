"""`hlorank collect`: measurement of configurations of programs on the XLA backend of this machine."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from hlorank.compute import map_graphs
from hlorank.config import ComputeConfig, ConfigError
from hlorank.data.collection import Collection
from hlorank_collect.commands.common_arguments import (
    add_command,
    add_machine_arguments,
    add_program_arguments,
    check_arguments,
    check_output,
    measuring_core,
    program_fields,
    program_names,
    status,
    supervision,
)
from hlorank_collect.left_out import read_left_out, record_left_out

_MEASURES = {"hlorank_measure": 1.0}
"""Resource of a node that measures: one program takes all of it."""
_MIN = {"configurations": 2, "kernels": 1, "max_rounds": 2, "time_limit": 1, "hang_seconds": 1}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = add_command(
        commands,
        "collect",
        run,
        help="measure layouts or tiles of programs on the XLA backend of this machine",
        description=(
            "Measures configurations of programs, of the built-in zoo or your own, and writes them as npz files of "
            "the official schema, each next to a JSON file that describes its measurement. A program that was "
            "measured with the same settings is not measured again: to continue, give the same command."
        ),
    )
    programs = parser.add_argument_group("programs")
    add_program_arguments(programs)
    programs.add_argument("--family", action="append", default=[], help="all programs of a family; may be repeated")
    programs.add_argument("--all", action="store_true", help="all programs of the zoo")
    programs.add_argument("--list", action="store_true", help="list the zoo, and measure nothing")
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--collection",
        default="layout:cpu:random",
        metavar="ADDRESS",
        help="layout:<cpu|gpu>:<random|default|models> or tile:gpu; gpu was tried once (default: %(default)s)",
    )
    what.add_argument("--out", type=Path, metavar="DIR", help="folder of the written tree; only --list needs none")
    what.add_argument(
        "--configurations", type=int, default=64, metavar="N", help="number per program or kernel (default: 64)"
    )
    what.add_argument("--kernels", type=int, default=3, metavar="N", help="number per program, for tiles (default: 3)")
    what.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of configurations, of rounds, and of the inputs of files (default: 0)",
    )
    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--max-rounds",
        type=int,
        default=100,
        metavar="N",
        help="round limit; measuring ends earlier where two halves of the rounds agree at a Kendall tau of 0.9 "
        "(default: 100)",
    )
    how.add_argument(
        "--time-limit",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="time per program; configurations not compiled by then are left out (default: 1800)",
    )
    how.add_argument(
        "--fast-compile",
        action="store_true",
        help="compile without XLA's fusion emitters, in less than half of the time: other code, with other runtimes",
    )
    add_machine_arguments(how)
    how.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="measure on the nodes of a Ray cluster that were started with --resources '{\"hlorank_measure\": 1}', one "
        "program on each at a time; auto is the cluster of this machine (needs the extra ray)",
    )


def _list_zoo() -> None:
    from hlorank_collect.zoo import programs

    for program in programs().values():
        sys.stdout.write(f"{program.name}\n")


def _chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the requested programs, each once, in their order.

    Raises:
        ConfigError: the zoo has no family `--family`, or no program is requested.
    """
    from hlorank_collect.zoo import programs

    families = {program.family for program in programs().values()}
    if unknown := set(arguments.family) - families:
        raise ConfigError(f"--family {', '.join(sorted(unknown))}: expected one of {', '.join(sorted(families))}")
    wanted = families if arguments.all else set(arguments.family)
    names = [*program_names(arguments), *(program.name for program in programs().values() if program.family in wanted)]
    if not names:
        raise ConfigError("no program: name some, or give --family or --all; --list shows the zoo")
    return list(dict.fromkeys(names))


def _collection(address: str) -> Collection:
    collection = Collection.parse(address)
    if collection.source not in ("cpu", "gpu"):
        raise ConfigError(f"--collection {address}: expected the source cpu or gpu, the backends that can be measured")
    if str(collection) == "tile:cpu":
        raise ConfigError(
            "--collection tile:cpu: XLA's CPU backend has no tiles to choose; the C loop nests of data/sample/tile/cpu "
            "are measured by the code of the git tag c-loop-nests only; give tile:gpu, or layout:cpu:random"
        )
    return collection


def run(arguments: argparse.Namespace) -> int:
    """Measure programs; those that fail are named at the end and in left_out.json, and the status is then 1.

    Raises:
        ConfigError: jax is missing, an argument is wrong, or the machine is busy.
        DataError: left_out.json is damaged.
        OSError: files cannot be written to --out.
    """
    if arguments.list:
        _list_zoo()
        return 0
    from hlorank_collect.jax_program import require_device, require_jax
    from hlorank_collect.layouts.layout_task import LayoutTask
    from hlorank_collect.run_tasks import run_tasks
    from hlorank_collect.task import TileTask

    require_jax()
    collection = _collection(arguments.collection)
    check_arguments(arguments, _MIN)
    if arguments.out is None:
        raise ConfigError("--out is missing: give the folder of the written tree")
    names = _chosen(arguments)
    check_output(arguments.out / collection.path)
    read_left_out(arguments.out)  # raises before anything is measured
    if arguments.ray is None:
        require_device(collection.source)  # of a cluster, the nodes have it
    settings: dict[str, Any] = {
        "collection": str(collection),
        "output": str(arguments.out),
        "configurations": arguments.configurations,
        "seed": arguments.seed,
        "rounds": arguments.max_rounds,
        "fast_compile": arguments.fast_compile,
        "time_limit": arguments.time_limit,
        "core": arguments.core if arguments.ray is not None else measuring_core(arguments),
    }
    programs = program_fields(arguments, names)
    tasks: list[TileTask] | list[LayoutTask]
    if collection.kind == "tile":
        tasks = [TileTask(**one, **settings, kernels=arguments.kernels) for one in programs]
    else:
        tasks = [LayoutTask(**one, **settings) for one in programs]
    record = partial(record_left_out, arguments.out, collection)
    cluster = None
    if arguments.ray is not None:
        config = ComputeConfig.of_cluster(arguments.ray, gpus=collection.source == "gpu")
        cluster = partial(map_graphs, settings=config, outputs=[arguments.out], resources=_MEASURES)
    return status(run_tasks(tasks, **supervision(arguments), record=record, cluster=cluster).left_out)
