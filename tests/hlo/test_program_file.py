"""Programs given in Python: paths, texts, bytes, and what JAX lowered or exported."""

from pathlib import Path

import pytest

from hlorank.files import DataError
from hlorank.hlo.program_file import program_file
from hlorank.hlo.reader import read_records

TEXT = "HloModule m\n\nENTRY main {\n  ROOT p = f32[2]{0} parameter(0)\n}\n"


def opcodes(program: object) -> list[str]:
    with program_file(program) as path:
        (computation,) = next(read_records(path)).module.computations
    return [node.opcode for node in computation.instructions]


def test_paths_texts_and_bytes(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="needs jax (extra collect)")
    (path := tmp_path / "m.hlo.txt").write_text(TEXT)
    with program_file(str(path)) as same, program_file(TEXT) as other:
        assert (same, other.read_text()) == (path, TEXT)
    assert not other.exists()
    for program in (path, str(path), TEXT, TEXT.encode(), bytearray(TEXT, "utf-8")):
        assert opcodes(program) == ["parameter"]


def test_what_jax_lowered_and_exported() -> None:
    jax = pytest.importorskip("jax", reason="needs jax (extra collect)")
    function, shape = jax.jit(lambda a: a @ a), jax.ShapeDtypeStruct((4, 4), "float32")
    for program in (function.lower(shape), jax.export.export(function)(shape)):
        assert opcodes(program) == ["parameter", "dot"]


def test_other_objects_are_refused() -> None:
    for program in (3, None, ["a"]):
        with pytest.raises(DataError, match="program"), program_file(program):
            pass
