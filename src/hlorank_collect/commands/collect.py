"""`hlorank collect`: measurement of configurations of programs on the XLA backend of this machine."""

from __future__ import annotations

import argparse
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, graph_files
from hlorank.data.manifest import manifest_of
from hlorank.terminal import add_number
from hlorank_collect.commands import common
from hlorank_collect.xla import TPUS


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = common.add_command(
        commands,
        run,
        "collect",
        "measure layouts of programs on the XLA backend of this machine",
        "Measures configurations of programs and writes them as npz files of the official schema, each next to a JSON "
        "file that describes its measurement. A program that was measured with the same settings is not measured "
        "again: to continue, give the same command.",
    )
    common.add_program_arguments(parser.add_argument_group("programs"))
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--collection",
        default="layout:cpu:random",
        metavar="ADDRESS",
        help="layout:<cpu|gpu>:<random|outputs|default|models>; gpu was tried once. Runtimes of "
        f"layout:<{'|'.join(TPUS)}>:... are estimates of the compiler for TPUs, or measured on a TPU of that "
        "generation, which is untried (default: %(default)s)",
    )
    what.add_argument("--out", type=Path, metavar="DIR", help="folder of the written tree")
    add_number(what, "--configurations", 64, "number per program", 2)
    add_number(what, "--seed", 0, "seed of configurations, of rounds, and of the inputs of files", 0)
    how = parser.add_argument_group("measurement")
    limit = "round limit; measuring ends earlier where two halves of the rounds agree at a Kendall tau of 0.9"
    add_number(how, "--max-rounds", 100, limit, 2, dest="rounds")
    limit = "time per program, but for two rounds; configurations not compiled by then are left out"
    add_number(how, "--time-limit", 1800, limit, metavar="SECONDS")
    common.add_machine_arguments(how)


def _collection(address: str) -> Collection:
    collection = Collection.parse(address)
    if collection.kind != "layout" or collection.source not in ("cpu", "gpu", *TPUS):
        raise ConfigError(f"--collection {address}: expected layout:<{'|'.join(('cpu', 'gpu', *TPUS))}>:<search>")
    return collection


def _attached(arguments: argparse.Namespace, collection: Collection) -> bool:
    """Return True if runtimes are measured on a TPU of this machine; ConfigError where the folder contradicts that."""
    from hlorank_collect.program import require_device
    from hlorank_collect.xla import attached_tpu

    if collection.source not in TPUS:
        return False
    require_device(collection.source)
    attached = attached_tpu() == collection.source
    if (manifest := manifest_of(collection, graph_files(arguments.out, collection, None))) is None:
        return attached
    compiler, measured = f"libtpu {version('libtpu')}", manifest.runtimes == "measured"
    if manifest.compilers != [compiler] or (measured and not attached):
        here = f"{compiler}, {'with' if attached else 'without'} such a TPU"
        raise ConfigError(f"--out {arguments.out / collection.path}: {manifest}; here is {here}: give another folder")
    return measured


def run(arguments: argparse.Namespace) -> int:
    """Measure programs; failed programs are named at the end and in left_out.json, and the status is then 1."""
    from hlorank_collect.program import require_device, require_jax
    from hlorank_collect.record import read_left_out, record_left_out
    from hlorank_collect.run_tasks import run_tasks
    from hlorank_collect.task import LayoutTask

    require_jax()
    collection = _collection(arguments.collection)
    common.check_arguments(arguments)
    if arguments.out is None:
        raise ConfigError("--out is missing: give the folder of the written tree")
    programs = common.program_fields(arguments)
    common.check_output(arguments.out / collection.path)
    read_left_out(arguments.out)  # raises before anything is measured
    backend = "tpu" if _attached(arguments, collection) else collection.source
    require_device(backend)
    settings = common.task_settings(arguments, str(collection))
    tasks = [LayoutTask(**program, **settings, attached=backend == "tpu") for program in programs]
    record = partial(record_left_out, arguments.out, collection)
    return common.status(run_tasks(tasks, **common.supervision(arguments, backend), record=record))
