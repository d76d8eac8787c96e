"""HLO text and compressed files."""

from __future__ import annotations

import gzip
import lzma
from io import BytesIO
from pathlib import Path

import pytest

from hlorank.data.collection import read_graph
from hlorank.fetch.hlo import convert
from hlorank.files import DataError
from hlorank.hlo import forms
from hlorank.hlo.node_features import OPCODES
from hlorank.hlo.reader import Record, featurize, read_records

TEXT = """HloModule jit_f, entry_computation_layout={(f32[2,3]{1,0})->f32[2]{0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

ENTRY %main.2 (x: f32[2,3]) -> f32[2] {
  %x = f32[2,3]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %dot.3 = f32[2,2]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %reduce.4 = f32[2]{0} reduce(%dot.3, %zero), dimensions={1}, to_apply=%sum
}
"""
EXPECTED = ["parameter", "parameter", "add", "parameter", "constant", "dot", "reduce"]
BOMB = bytes(2**20)


def zipped(content: bytes) -> bytes:
    """Compress without the time, which would be part of the name of a test."""
    return gzip.compress(content, mtime=0)


@pytest.fixture
def jaxlib() -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path) -> Record:
    (record,) = read_records(path)
    return record


def refused(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        list(read_records(path))
    assert caught.value.file == path
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.usefixtures("jaxlib")
def test_text_becomes_the_graph_of_its_module(tmp_path: Path) -> None:
    record = read(write(tmp_path / "f.hlo.txt", TEXT))
    assert (record.name, record.kind, record.module.name) == ("f", None, "jit_f")
    graph = featurize(record)[0].graph
    assert sorted(graph.node_opcode.tolist()) == sorted(OPCODES[name] for name in EXPECTED)
    edges = {(graph.node_opcode[user], graph.node_opcode[used]) for user, used in graph.edge_index}
    named = [("add", "parameter"), ("dot", "parameter"), ("reduce", "constant"), ("reduce", "dot"), ("reduce", "add")]
    assert edges == {(OPCODES[user], OPCODES[used]) for user, used in named}


STABLEHLO = """// a comment
module @jit_f {
  func.func public @main(%arg0: tensor<2x3xf32>) -> tensor<2x2xf32> {
    %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [1] : (tensor<2x3xf32>, tensor<2x3xf32>)
      -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
}
"""


@pytest.mark.usefixtures("jaxlib")
def test_stablehlo_becomes_the_graph_of_its_module(tmp_path: Path) -> None:
    record = read(write(tmp_path / "f.mlir", STABLEHLO))
    assert (record.name, record.module.name) == ("f", "jit_f")
    assert featurize(record)[0].graph.node_opcode.tolist() == [OPCODES["parameter"], OPCODES["dot"]]
    packed = read(write(tmp_path / "f.mlir.gz", gzip.compress(STABLEHLO.encode())))
    assert packed.module == record.module


def test_bytecode_and_portable_artifacts_equal_the_text(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="needs jax (extra collect)")
    lowered = jax.jit(lambda x: x @ x).trace(jax.numpy.ones((4, 4))).lower(lowering_platforms=("cpu",))
    text = read(write(tmp_path / "f.mlir", lowered.as_text())).module
    bytecode = BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(bytecode)
    exported = jax.export.export(jax.jit(lambda x: x @ x), platforms=["cpu"])(jax.numpy.ones((4, 4)))
    graphs = [featurize(read(write(tmp_path / "f.mlirbc", bytecode.getvalue())))[0].graph]
    graphs += [featurize(read(write(tmp_path / "f.bin", exported.mlir_module_serialized)))[0].graph]
    (opcodes,) = {tuple(graph.node_opcode.tolist()) for graph in graphs}
    assert len(opcodes) == sum(len(one.instructions) for one in text.computations)


@pytest.mark.usefixtures("jaxlib")
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("dot_general", "frobnicate", "line 4, column 10"),
        ("return", "(", "line 5, column 25"),
        ("}\n}\n", "", "line 6"),
    ],
)
def test_an_error_in_stablehlo_has_line_and_column(tmp_path: Path, old: str, new: str, place: str) -> None:
    assert refused(write(tmp_path / "bad.mlir", STABLEHLO.replace(old, new))).key.startswith(place)


@pytest.mark.usefixtures("jaxlib")
def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    plain = read(write(tmp_path / "f.hlo", TEXT)).module
    data = plain.SerializeToString()
    contents = {
        "f.txt": TEXT.encode(),
        "f.pb": TEXT.encode(),
        "f.hlo.txt.xz": lzma.compress(TEXT.encode()),
        "f.hlo.gz": gzip.compress(TEXT.encode()),
        "two_streams.txt.gz": gzip.compress(TEXT[:100].encode()) + gzip.compress(TEXT[100:].encode()) + bytes(4),
        "comment.txt": b"// of XLA\n/* HloModule\n*/\n" + TEXT.encode(),
        "protobuf.txt": data,
        "f.hlo.pb.xz": lzma.compress(data),
    }
    for name, content in contents.items():
        assert read(write(tmp_path / name, content)).module == plain, name


# The two places of the last one come from readings of the same operand.
@pytest.mark.usefixtures("jaxlib")
@pytest.mark.parametrize(
    ("old", "new", "place", "found"),
    [
        ("f32[] add", "f32[] frobnicate", "line 6, column 23 (%add.1)", "frobnicate"),
        ("%zero),", "%nothing),", "line 13, column 45 (%reduce.4)", "nothing"),
        ("f32[2,3]{1,0} par", "f33[2,3]{1,0} par", "line 10, column 8 (%x)", "f33"),
        ("lhs_contracting_dims", "left_dims", "line 12, column 39 (%dot.3)", "left_dims"),
    ],
)
def test_an_error_of_the_parser_has_line_column_and_instruction(
    tmp_path: Path, old: str, new: str, place: str, found: str
) -> None:
    assert old in TEXT
    error = refused(write(tmp_path / "bad.txt", TEXT.replace(old, new)))
    assert error.key == place
    assert found in str(error.found)


@pytest.mark.usefixtures("jaxlib")
@pytest.mark.parametrize("length", [len(TEXT) - 40, len(TEXT) - 3, 300, 20])
def test_a_truncated_text_is_refused(tmp_path: Path, length: int) -> None:
    error = refused(write(tmp_path / "cut.txt", TEXT[:length]))
    assert error.key.startswith("line ")
    assert "truncated" in str(error)


@pytest.mark.usefixtures("jaxlib")
@pytest.mark.parametrize(
    "instruction",
    [
        "ROOT r = f32[] parameter(9223372036854775807)",  # aborts the process
        f"ROOT r = {'(' * 100_000}",  # overflows its stack
        "ROOT r = f32[100000,1000000] constant({...})",  # 400 GB
        "ROOT r = f32[-1] parameter(0)",  # no message at all
    ],
)
def test_a_text_that_the_parser_does_not_survive_is_refused(tmp_path: Path, instruction: str) -> None:
    assert refused(write(tmp_path / "bad.txt", f"HloModule m\nENTRY e {{\n {instruction}\n}}")).key == "file"


def test_without_jaxlib_the_remedy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "has_jaxlib", lambda: False)
    error = refused(write(tmp_path / "a.txt", TEXT))
    assert error.key == "file"
    assert "hlorank[collect]" in error.expected


@pytest.mark.parametrize(
    "content",
    [
        b"Module jit_f {}",
        b"\n\n",
        zipped(b"HloModules"),
        lzma.compress(b""),
        zipped(TEXT.encode())[:-9],
        lzma.compress(TEXT.encode())[:100],
        b"\x1f\x8b" + bytes(20),
        b"\xfd7zXZ\x00" + bytes(20),
        zipped(TEXT.encode()) + b"more",
        zipped(zipped(TEXT.encode())),
    ],
)
def test_damaged_files_and_other_texts_are_refused(tmp_path: Path, content: bytes) -> None:
    assert refused(write(tmp_path / "bad.txt", content)).key == "file"


def test_other_texts_are_refused_alike_in_any_letters(tmp_path: Path) -> None:
    cut = b"x" * (2**16 - 1) + "é".encode()  # a letter across the end of what is looked at
    plain, accented, long = (refused(write(tmp_path / "a.md", text)) for text in (b"# A\n", "# É\n".encode(), cut))
    assert str(plain) == str(accented) == str(long)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "bad.txt", b"HloModule a\n  \xff\n"))
    assert (error.key, error.found) == ("line 2, column 3", "byte 0xff")


@pytest.mark.parametrize(
    "content",
    [lzma.compress(BOMB), zipped(BOMB), zipped(BOMB[:999]) * 9, b"HloModule m" + b" " * 2**12],
    ids=["xz", "gzip", "streams", "text"],
)
def test_more_bytes_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(forms, "MAX_BYTES", 2**12)
    error = refused(write(tmp_path / "bomb.txt", content))
    assert error.key == "file"
    assert "4,096" in error.expected


def test_an_xz_file_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}]
    # Encoding would need the memory as well: the size is written into the header of a small file.
    small = bytearray(lzma.compress(TEXT.encode(), filters=[{**filters[0], "dict_size": 2**16}]))
    assert refused(write(tmp_path / "bad.xz", bytes(small[:40]))).key == "file"


# Numbers of lines with ` = ` in the texts.
REAL = {"imagenette.inference": 575, "llama3_8b.training": 2_298, "resnet50.training": 9_620}


@pytest.mark.slow
@pytest.mark.usefixtures("jaxlib")
@pytest.mark.parametrize("name", REAL)
def test_real_modules_have_a_node_for_each_instruction(name: str, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "hlo" / f"{name}.hlo.txt.xz"
    if not source.is_file():
        pytest.skip(f"no {source}")
    (path,) = convert(source, tmp_path)
    assert path.name == f"{name}.npz"
    assert read_graph(path, "layout").graph.nodes == REAL[name]
