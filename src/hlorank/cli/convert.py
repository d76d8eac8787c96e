"""`hlorank convert`: convert HLO modules to npz files."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from hlorank.cli.programs import HELP, add_program_options, find_programs
from hlorank.fetch.hlo import check_names, convert
from hlorank.files import DataError, counted, escape
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.runs.store import error_lines

_log = logging.getLogger(__name__)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "convert",
        help="convert HLO modules to npz files with the official features",
        description="Converts programs, such as XLA dumps and tuning records of TpuGraphs, to npz files, as the origin "
        "hlo of fetch does. Dumps with nothing to configure are left out with a notice. Files that cannot be converted "
        "are named, the others are converted, and the exit status is 2.",
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help=HELP)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for the npz files")
    parser.add_argument(
        "--extra", action="store_true", help="also write <graph>.extra.npz, with features beyond the official 140"
    )
    add_program_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert every input; name those that fail on standard error, and then return 2, or 1 for a file not written."""
    programs, unusable = find_programs(arguments.file, arguments.dump, arguments.arguments)
    errors: list[DataError | OSError] = [*unusable]
    check_names(program.path for program in programs)
    left_out = 0
    for program in programs:
        try:
            written = convert(program.path, arguments.folder, extra=arguments.extra)
        except NothingToConfigureError as error:
            _log.warning("left out: %s", program.labelled(error))
            left_out += 1
        except DataError as error:
            errors.append(program.labelled(error))
        except OSError as error:
            errors.append(error)
        else:
            sys.stdout.writelines(f"{escape(str(path))}\n" for path in written)
    sys.stderr.writelines(f"{line}\n" for error in errors for line in error_lines(error) or ())
    if errors:
        return 1 if any(isinstance(error, OSError) for error in errors) else 2
    if left_out and left_out == len(programs):
        raise DataError("FILE", "a program to configure", f"none in {counted(left_out, 'file')}")
    return 0
