"""Inputs of commands: programs as files, folders, globs, JAX functions and the standard input; and the model."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import SPEC, DataError, file_name, read_json, temporary_folder
from hlorank.hlo.reader import DUMPS, contents, program_files
from hlorank.hlo.xla_process import XlaError, in_process
from hlorank.terminal import add_number

if TYPE_CHECKING:
    from hlorank.ranking.ranker import Ranker

FORMS = "a file, or a JAX function as module:function, such as mymod:step"
HELP = (
    "an HLO protobuf, HLO text or StableHLO, also as .xz or .gz; a folder or a glob of them; module:function, a JAX "
    "function; or - for the standard input"
)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Program:
    """File of a program, maybe a temporary one, and the name that it has in errors, warnings and JSON."""

    path: Path
    label: str

    def __str__(self) -> str:
        return self.label

    def labelled(self, error: DataError) -> DataError:
        """Return an error with the label where it names the file or no file."""
        return error.in_file(self.label) if error.file is None or Path(error.file) == self.path else error


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add --dump and --arguments."""
    group = parser.add_argument_group("programs")
    group.add_argument(
        "--dump",
        metavar="STAGE",
        help="stage that is taken of the dumps in a folder, and of a JAX function: the end of the dump's name, such as "
        f"before_optimizations (default: {DUMPS[0]}, or else {DUMPS[1]})",
    )
    add_arguments(group)


def add_arguments(group: argparse._ActionsContainer) -> None:
    """Add --arguments."""
    group.add_argument(
        "--arguments",
        metavar="SHAPES",
        help="example arguments of module:function: their shapes, such as 'f32[8,128] s32[8]', or module:name of a "
        "tuple of them, or of a function that returns one",
    )


def is_function(program: str) -> bool:
    """Return True if a program is `module:function`."""
    return bool(_FUNCTION.fullmatch(program)) and ".py:" not in program and not Path(program).exists()


def find_programs(
    inputs: Sequence[str], dump: str | None, arguments: str | None, backend: str = "cpu"
) -> tuple[list[Program], list[DataError]]:
    """Return the programs of paths, globs, JAX functions and `-`, and an error for each input without a program.

    Functions are traced, and compiled up to layout assignment, for the backend.
    """
    if arguments is not None and not any(map(is_function, inputs)):
        raise ConfigError("--arguments: only for module:function, such as mymod:step")
    programs: list[Program] = []
    errors: list[DataError] = []
    for name in inputs:
        try:
            if is_function(name):
                programs.append(_traced(name, arguments, dump, backend))
            elif name == "-":
                programs.append(_standard_input())
            else:
                programs += [Program(path, str(path)) for path in _expanded(Path(name), dump)]
        except DataError as error:
            errors.append(error)
    return programs, errors


def _expanded(path: Path, dump: str | None) -> list[Path]:
    """Return the files of a folder or a glob, or the file itself."""
    if path.is_dir():
        if files := program_files(path, dump):
            return files
        stages = " or ".join(DUMPS) if dump is None else dump
        expected = f"programs of the stage {stages}: *.pb, HLO text or StableHLO; name other files and folders in it"
        raise DataError("folder", expected, contents(path), file=path)
    if not path.exists() and any(letter in str(path) for letter in "*?["):
        anchor = Path(path.anchor)
        found = sorted(anchor.glob(str(path.relative_to(anchor))))
        if files := [file for one in found for file in (program_files(one, dump) if one.is_dir() else [one])]:
            return files
        raise DataError("glob", "at least one file", "none", file=path)
    if path.suffix == ".py" or not path.exists():
        raise DataError("program", FORMS, "a Python file" if path.exists() else "no such file", file=path)
    return [path]


def _standard_input() -> Program:
    path = temporary_folder() / "stdin"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Program(path, "-")


def _traced(function: str, arguments: str | None, dump: str | None, backend: str) -> Program:
    stage = next((name for name in DUMPS if dump is None or name.replace("-", "_") == dump.replace("-", "_")), None)
    if stage is None:
        raise ConfigError(f"program {function!r}: --dump {dump}: expected {' or '.join(DUMPS)}")
    path = temporary_folder() / f"{file_name(function)}.pb"
    try:
        given = [] if arguments is None else [arguments]
        path.write_bytes(in_process("trace", b"", function, stage, backend, *given))
    except XlaError as error:
        raise ConfigError(f"program {function!r}: {str(error).removeprefix(f'program {function!r}: ')}") from None
    return Program(path, function)


def add_model_arguments(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add the arguments of a command that scores configurations; `default` describes the model where none is given."""
    help_of_model = f"a model folder, an MLflow run id, or models:/<name>@champion{default}"
    parser.add_argument("--model", required=not default, metavar="MODEL", help=help_of_model)
    add_number(parser, "--memory", 256, "limit of the memory of activations while scoring", metavar="MIB")
    parser.add_argument(
        "--accelerator",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device; auto is CUDA where PyTorch finds it (default: %(default)s)",
    )


def collection_of(folder: Path) -> tuple[str, str]:
    """Return the address of the collection that a model was trained on, and its backend, by default cpu."""
    spec = read_json(folder / SPEC)
    address = str(spec.get("collection", ""))
    named = Collection.parse(address).backend if address else ""
    return address, str(spec.get("features", {}).get("backend") or named or "cpu")


def open_ranker(model: str, memory_mib: int, accelerator: str) -> Ranker:
    """Return the ranker of a reference of `model_folder`."""
    from hlorank.runs.find import model_folder

    folder = model_folder(model)  # before PyTorch is imported, which takes seconds
    from hlorank.ranking.ranker import Ranker

    return Ranker(folder, memory_mib * 2**20, accelerator)
