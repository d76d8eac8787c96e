"""Programs named on a command line: files, folders, globs, JAX functions, and the standard input."""

from __future__ import annotations

import argparse
import atexit
import re
import shutil
import sys
import tempfile
from pathlib import Path

from hlorank.cli.mistyped import FORMS, meant
from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank.hlo.reader import DUMPS, dumped_stages, program_files
from hlorank.hlo.xla_process import XlaError, in_process

HELP = (
    "an HLO protobuf, HLO text or StableHLO, also as .xz or .gz; a folder or a glob of them; module:function, a JAX "
    "function; or - for the standard input"
)
_STAGES = 10
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add --dump and --arguments."""
    group = parser.add_argument_group("programs")
    group.add_argument(
        "--dump",
        metavar="STAGE",
        help="stage that is taken of the dumps in a folder, and of a JAX function: the end of the dump's name, such as "
        f"before_optimizations (default: {DUMPS[0]}, or else {DUMPS[1]})",
    )
    group.add_argument(
        "--arguments",
        metavar="SHAPES",
        help="example arguments of module:function: their shapes, such as 'f32[8,128] s32[8]', or module:name of a "
        "tuple of them, or of a function that returns one",
    )


def is_function(program: str) -> bool:
    """Return True if a program is `module:function`."""
    is_name = _FUNCTION.fullmatch(program) is not None and not program.partition(":")[0].endswith(".py")
    return is_name and not Path(program).exists()


def program_paths(inputs: list[Path], dump: str | None, arguments: str | None) -> tuple[list[Path], list[DataError]]:
    """Return the file of each program, and the inputs that name none.

    The standard input and the modules of JAX functions are files in a temporary folder; their `str` is the input.

    Args:
        inputs: paths, globs, JAX functions, or `-`.
        dump: as for `program_files`.
        arguments: example arguments of the JAX functions.

    Raises:
        ConfigError: a JAX function has no arguments, or arguments have no function; the function does not trace or
            compile, or its module has no stage `dump`.
    """
    functions = {path for path in inputs if is_function(str(path))}
    if arguments is not None and not functions:
        hints = [hint for path in inputs if not path.exists() and (hint := meant(str(path))) is not None]
        remedy = f"did you mean {hints[0]}?" if hints else "such as mymod:step"
        raise ConfigError(f"--arguments: only for module:function; {remedy}")
    paths: list[Path] = []
    errors: list[DataError] = []
    for path in inputs:
        try:
            if path in functions:
                paths.append(_traced(str(path), arguments, dump))
            elif str(path) == "-":
                paths.append(_standard_input())
            else:
                paths += _expanded(path, dump)
        except DataError as error:
            errors.append(error)
    return paths, errors


def _expanded(path: Path, dump: str | None) -> list[Path]:
    if path.is_dir():
        if files := program_files(path, dump):
            return files
        stages = " or ".join(DUMPS) if dump is None else dump
        there = dumped_stages(path)
        more = f" and {len(there) - _STAGES} more" if len(there) > _STAGES else ""
        none = "only .npz files; name these, or a glob of them" if any(path.glob("*.npz")) else "none"
        found = f"only {', '.join(there[:_STAGES])}{more}" if there else none
        raise DataError("folder", f"programs of the stage {stages}: *.pb, HLO text or StableHLO", found, file=path)
    if not path.exists() and any(letter in str(path) for letter in "*?["):
        anchor = Path(path.anchor)
        if files := sorted(anchor.glob(str(path.relative_to(anchor)))):
            return files
        raise DataError("glob", "at least one file", "none", file=path)
    if path.suffix == ".py" or not path.exists():
        hint = meant(str(path))
        remedy = "" if hint is None else f"; did you mean {hint}?"
        raise DataError("program", FORMS + remedy, "a Python file" if path.exists() else "no such file", file=path)
    return [path]


class _TemporaryFile(type(Path())):  # type: ignore[misc]  # Python 3.11 has no other way to derive from Path
    """Temporary file that is printed as the program on the command line, in errors, warnings and JSON."""

    program: str | None = None

    def __str__(self) -> str:
        return self.program or self.__fspath__()

    def __fspath__(self) -> str:
        return str(super().__str__())


def _temporary(name: str, program: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hlorank-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = _TemporaryFile(folder, name)
    path.program = program
    return path


def _standard_input() -> Path:
    path = _temporary("stdin", "-")
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _traced(function: str, arguments: str | None, dump: str | None) -> Path:
    if arguments is None:
        hint = meant(function)
        remedy = f"; did you mean {hint}?" if hint not in (None, function) else ""
        raise ConfigError(f"program {function!r}: needs --arguments, such as 'f32[8,128] s32[8]'{remedy}")
    stage = next((one for one in DUMPS if dump is None or one.replace("-", "_") == dump.replace("-", "_")), None)
    if stage is None:
        raise ConfigError(f"program {function!r}: --dump {dump}: expected {' or '.join(DUMPS)}")
    path = _temporary(f"{re.sub(r'[^A-Za-z0-9._]+', '-', function)}.pb", function)
    try:
        path.write_bytes(in_process("trace", b"", function, arguments, stage))
    except XlaError as error:
        raise ConfigError(f"program {function!r}: {error}") from None
    return path
