"""Programs in Python, as files: a path, the text or bytes of a program, and what JAX lowered or exported."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hlorank.files import DataError


@contextmanager
def program_file(program: Any) -> Iterator[Path]:
    """Yield the file of a program, a temporary one where it is not a path.

    Args:
        program: a path; HLO text or StableHLO; bytes, in any form that a file may have; or what
            `jax.jit(function).lower(...)` or `jax.export.export(...)(...)` returns.

    Raises:
        DataError: it is something else.
    """
    if isinstance(program, Path) or (isinstance(program, str) and "\n" not in program):
        yield Path(program)
        return
    if (exported := getattr(program, "mlir_module_serialized", None)) is not None:
        program = exported
    elif hasattr(program, "compiler_ir"):
        program = program.as_text()
    if not isinstance(program, str | bytes | bytearray):
        expected = "a path, the text or bytes of a program, or what jax.jit(function).lower(...) returns"
        raise DataError("program", expected, f"a {type(program).__name__}")
    with tempfile.TemporaryDirectory(prefix="hlorank-") as folder:
        path = Path(folder, "program")
        path.write_bytes(program.encode() if isinstance(program, str) else program)
        yield path
