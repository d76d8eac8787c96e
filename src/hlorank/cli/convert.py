"""`hlorank convert`: convert HLO protobufs to npz files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hlorank.files import DataError, escape
from hlorank.hlo.convert import check_names, convert
from hlorank.hlo.reader import proto_files


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "convert",
        help="convert HLO protobufs to npz files with the official features",
        description="Converts HLO protobufs, such as XLA dumps and tuning records of TpuGraphs, to npz files.",
    )
    parser.add_argument("input", nargs="+", type=Path, metavar="INPUT", help="a protobuf, or a folder of them")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the npz files")
    parser.add_argument(
        "--kind",
        choices=("layout", "tile"),
        help="kind of the configurations (default: the kind of the runs in the file, layout for a dump)",
    )
    parser.add_argument(
        "--extra", action="store_true", help="also write <graph>.extra.npz, with features beyond the official 140"
    )
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
    """Convert every input; name those that fail on standard error, and then return 2."""
    sources = list(_files(arguments.input))
    check_names(sources)
    failed = 0
    for source in sources:
        try:
            for path in convert(source, arguments.out, arguments.kind, extra=arguments.extra):
                sys.stdout.write(f"{escape(str(path))}\n")
        except DataError as error:
            sys.stderr.write(f"error: {error}\n")
            failed += 1
    return 2 if failed else 0
