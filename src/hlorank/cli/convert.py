"""`hlorank convert`: HLO protobufs to npz files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hlorank.files import DataError
from hlorank.hlo.convert import check_names, convert
from hlorank.hlo.reader import proto_files


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "convert",
        help="turn HLO protobufs into npz files with the official features",
        description="Turns HLO protobufs (XLA dumps, TpuGraphs' tuning records) into npz files of the official schema.",
    )
    parser.add_argument("input", nargs="+", type=Path, metavar="INPUT", help="a protobuf, or a folder of them")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the npz files go")
    parser.add_argument(
        "--kind",
        choices=("layout", "tile"),
        help="what is to be configured (default: what the runs in the file configure, layout for a dump)",
    )
    parser.add_argument("--extra", action="store_true", help="also write <graph>.extra.npz, features beyond the 140")
    parser.set_defaults(run=run)


def _files(inputs: Sequence[Path]) -> Iterator[Path]:
    for path in inputs:
        if path.is_dir():
            files = proto_files(path)
            if not files:
                raise DataError("folder", "*.pb files", "none", file=path)
            yield from files
        else:
            yield path


def run(arguments: argparse.Namespace) -> int:
    """Converts every input; those that fail are named on standard error, and the status is then 1."""
    sources = list(_files(arguments.input))
    check_names(sources)
    failed = 0
    for source in sources:
        try:
            for path in convert(source, arguments.out, arguments.kind, extra=arguments.extra):
                sys.stdout.write(f"{path}\n")
        except DataError as error:
            sys.stderr.write(f"error: {error}\n")
            failed += 1
    return 1 if failed else 0
