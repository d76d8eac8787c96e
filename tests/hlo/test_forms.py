"""Programs as HLO text, StableHLO and compressed files, jobs of XLA, and stages of modules."""

import gzip
import lzma
import os
from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import pytest

from hlorank.data.collection import read_graph
from hlorank.fetch.hlo import convert
from hlorank.files import DataError
from hlorank.hlo import forms, xla_process
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.node_features import OPCODES
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.hlo.stage import TRAINED, Stage, needs_compilation, stage_of
from hlorank.hlo.xla_process import GROUP, XlaError, in_process

TEXT = (Path(__file__).parent / "jit_f.hlo.txt").read_text(encoding="utf-8")
STABLEHLO = (Path(__file__).parent / "jit_f.mlir").read_text(encoding="utf-8")
BOMB = bytes(2**20)


def zipped(content: bytes) -> bytes:
    """Compress without the time, which would be part of the name of a test."""
    return gzip.compress(content, mtime=0)


@pytest.fixture
def jaxlib() -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")


@pytest.fixture
def parser_here(jaxlib: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse in this process, which takes no second: not the texts that end it."""
    from hlorank_collect import xla_texts

    def parse(_: str, data: bytes, language: str) -> bytes:
        try:
            return xla_texts.parse(data, stablehlo=language == "stablehlo")
        except Exception as error:
            raise XlaError(str(error)) from None

    monkeypatch.setattr(forms, "in_process", parse)


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
def test_text_and_stablehlo_become_the_graph_of_their_module(tmp_path: Path) -> None:
    record = read(write(tmp_path / "f.hlo.txt", TEXT))
    assert (record.name, record.kind, record.module.name) == ("f", None, "jit_f")
    graph = featurize(record)[0].graph
    opcodes = ["parameter", "parameter", "add", "parameter", "constant", "dot", "reduce"]
    assert sorted(graph.node_opcode.tolist()) == sorted(OPCODES[name] for name in opcodes)
    edges = {(graph.node_opcode[user], graph.node_opcode[used]) for user, used in graph.edge_index}
    named = [("add", "parameter"), ("dot", "parameter"), ("reduce", "constant"), ("reduce", "dot"), ("reduce", "add")]
    assert edges == {(OPCODES[user], OPCODES[used]) for user, used in named}
    record = read(write(tmp_path / "f.mlir.gz", zipped(STABLEHLO.encode())))
    assert (record.name, record.module.name) == ("f", "jit_f")
    assert featurize(record)[0].graph.node_opcode.tolist() == [OPCODES["parameter"], OPCODES["dot"]]


@pytest.mark.usefixtures("parser_here")
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


@pytest.mark.usefixtures("parser_here")
def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    plain = read(write(tmp_path / "f.hlo", TEXT)).module
    data = plain.SerializeToString()  # only the numbers of modules differ
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
        assert read(write(tmp_path / name, content)).module.computations == plain.computations, name


# The two places of the third one come from readings of the same operand.
@pytest.mark.usefixtures("parser_here")
@pytest.mark.parametrize(
    ("text", "old", "new", "place", "found"),
    [
        (TEXT, "f32[] add", "f32[] frobnicate", "line 6, column 23 (%add.1)", "frobnicate"),
        (TEXT, "%zero),", "%nothing),", "line 13, column 45 (%reduce.4)", "nothing"),
        (TEXT, "f32[2,3]{1,0} par", "f33[2,3]{1,0} par", "line 10, column 8 (%x)", "f33"),
        (TEXT, "lhs_contracting_dims", "left_dims", "line 12, column 39 (%dot.3)", "left_dims"),
        *((TEXT, TEXT[length:], "", "line ", "truncated") for length in (20, 300, len(TEXT) - 40, len(TEXT) - 3)),
        (STABLEHLO, "dot_general", "frobnicate", "line 4, column 10", "frobnicate"),
        (STABLEHLO, "return", "(", "line 5, column 25", ""),
        (STABLEHLO, "}\n}\n", "", "line 6", ""),
    ],
)
def test_a_parser_error_names_its_place(tmp_path: Path, text: str, old: str, new: str, place: str, found: str) -> None:
    assert old in text
    error = refused(write(tmp_path / "bad.txt", new.join(text.rsplit(old, 1))))
    assert error.key.startswith(place)
    assert found in str(error.found)


BODY = TEXT.partition("\n")[2]


@pytest.mark.usefixtures("parser_here")
@pytest.mark.parametrize(
    ("content", "line", "codes"),
    [
        (TEXT, 6, ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]),
        (f"\ufeff{TEXT}", 6, ["utf-16-be"]),
        (f"\r\n// é\n{TEXT}", 8, ["utf-8", "utf-16-le", "utf-16-be"]),
        (f"A module:\n\n```hlo\n{TEXT}```\nand more\n", 9, ["utf-8", "utf-16-le"]),
        (f"2026-01-01 dumping module 1\n{TEXT}", 7, ["utf-8"]),
        (f"\x1b[32mINFO\x1b[0m module dump: HloModule\n{TEXT}", 7, ["utf-8"]),
        (9_000 * "a line of a log\n" + TEXT, 9_006, ["utf-8"]),
        ("".join(f"I0101 00:00:00.0 7 a.cc:1] {line}\n" for line in TEXT.splitlines()), 6, ["utf-8"]),
        ("".join(f"2026-01-01 00:00:00.1: I a/b.cc:1] {line}\n" for line in TEXT.splitlines()), 6, ["utf-8"]),
        (f"\n{BODY}", 6, ["utf-8"]),
    ],
    ids=["codes", "bom", "letters", "markdown", "log", "colours", "long log", "absl", "TensorFlow", "no header"],
)
def test_what_is_around_a_module_does_not_matter(content: str, line: int, codes: list[str], tmp_path: Path) -> None:
    plain = read(write(tmp_path / "f.txt", TEXT)).module
    wrong = content.replace("f32[] add", "f32[] frob")
    for code in codes:
        assert read(write(tmp_path / "f.txt", content.encode(code))).module.computations == plain.computations, code
        assert refused(write(tmp_path / "f.txt", wrong.encode(code))).key.startswith(f"line {line}, "), code


@pytest.mark.usefixtures("parser_here")
@pytest.mark.parametrize(
    ("text", "old", "new", "named"),
    [
        (TEXT, "f32[] add", "f32[] scan-add", "scan-add"),
        (TEXT, "lhs_contracting_dims", "future={1}, lhs_contracting_dims", "future"),
        (STABLEHLO, "stablehlo.dot_general", "stablehlo.future", "stablehlo.future"),
        (STABLEHLO, "[1] :", "[1], precision = [ULTRA, DEFAULT] :", "ULTRA"),
        (STABLEHLO, "[1] :", "[1], future = [1] :", "future"),
    ],
)
def test_what_a_newer_xla_wrote_is_named_with_the_version_here_and_a_way_out(
    tmp_path: Path, text: str, old: str, new: str, named: str
) -> None:
    error = refused(write(tmp_path / "new.txt", text.replace(old, new, 1)))
    assert version("jaxlib") in error.expected
    assert ("StableHLO 1." in error.expected) == (text == STABLEHLO)
    assert named in str(error.found)
    assert ("jax.export" if text == STABLEHLO else "before_layout-assignment") in str(error.found)


@pytest.mark.usefixtures("parser_here")
@pytest.mark.parametrize(
    "value",
    ["dense_resource<w>", "dense< __elided__ >", "dense<...>", 'dense<"...">', 'opaque<"elided_large_const", "0xDE">'],
)
@pytest.mark.parametrize("element", ["f32", "bf16", "i1", "ui8", "complex<f32>"])
def test_values_that_are_left_out_do_not_matter(value: str, element: str, tmp_path: Path) -> None:
    shape = f"tensor<{0 if 'opaque' in value else 2}x2x{element}>"
    body = f"%c = stablehlo.constant {value} : {shape}\n return %c : {shape}"
    module = f"module @m {{ func.func public @main() -> {shape} {{ {body} }} }}"
    record = read(write(tmp_path / "f.mlir", module))
    assert [node.opcode for node in record.module.computations[0].instructions] == ["constant"]


@pytest.mark.usefixtures("jaxlib")
def test_flags_of_xla_and_newer_stablehlo_are_not_taken_for_a_wrong_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag")
    assert read(write(tmp_path / "f.txt", TEXT)).module.name == "jit_f"
    text = TEXT.replace("ROOT %reduce.4 = f32[2]", "%r = f32[9] reshape(%x)\n ROOT %reduce.4 = f32[2]", 1)
    assert "shape: f32[9] operand: f32[2,3]" in str(refused(write(tmp_path / "f.txt", text)).found)
    assert "9.1.0" in str(refused(write(tmp_path / "f.bin", b"ML\xefR\rStableHLO_v9.1.0\0")).found)


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


XZ = lzma.compress(TEXT.encode(), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**16}])


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
        XZ[:40],
        zipped(TEXT.encode()) + b"more",
        zipped(zipped(TEXT.encode())),
        b" \n" * 64 + b"text",  # took forever
        b"/* HLO */ " * 64 + b"text",
        b"PK\x03\x04 of torch",
        b"\x24\0\0\0 of jax.export" + b"ML\xefR",
    ],
)
def test_damaged_files_and_other_texts_are_refused(tmp_path: Path, content: bytes) -> None:
    assert refused(write(tmp_path / "bad.txt", content)).key == "file"


def test_other_texts_are_refused_alike_in_any_letters_but_not_other_than_utf_8(tmp_path: Path) -> None:
    cut = b"x" * (2**20 - 1) + "é".encode()  # a letter across the end of what is looked at
    plain, accented, long = (refused(write(tmp_path / "a.md", text)) for text in (b"# A\n", "# É\n".encode(), cut))
    assert str(plain) == str(accented) == str(long)
    error = refused(write(tmp_path / "bad.txt", b"HloModule a\n  \xff\n"))
    assert (error.key, error.found) == ("line 2, column 3", "byte 0xff")


def test_more_bytes_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MAX_BYTES", 2**12)
    for content in (lzma.compress(BOMB), zipped(BOMB), zipped(BOMB[:999]) * 9, b"HloModule m" + b" " * 2**12):
        error = refused(write(tmp_path / "bomb.txt", content))
        assert (error.key, "4,096" in error.expected) == ("file", True)


# Numbers of lines with ` = ` in the texts.
REAL = {"imagenette.inference": 575, "llama3_8b.prefill": 637, "resnet50.training": 9_620}


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


JOBS = (Path(__file__).parent / "own_jobs.txt").read_text(encoding="utf-8")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of a package of its own, and jaxlib."""
    (tmp_path / "own_jobs.py").write_text(JOBS)
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    names = ("echo", "refuse", "leave", "abort", "die", "check", "cut", "quit", "sleep", "lost")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = own_jobs:{name}\n" for name in names))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(xla_process, "has_jaxlib", lambda: True)


@pytest.mark.usefixtures("jobs")
def test_a_job_has_its_data_and_arguments_and_what_it_prints_is_no_result() -> None:
    assert in_process("echo", b"\x00\xff", " one", " two") == b"\x00\xff one twoFalse"


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("refuse", "line 1\nline 2"),
        ("leave", "SystemExit 0"),
        ("abort", "SIGABRT"),
        ("die", "SIGSEGV"),
        ("check", "SIGABRT): Check failed: f32[9]"),
        ("cut", "before its result is complete"),
        ("quit", "status 7"),
        ("sleep", "more than 1 seconds"),
        ("lost", "lost"),
        ("unknown", "no entry point unknown"),
    ],
)
def test_a_job_that_fails_has_a_reason(work: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_process, "MAX_SECONDS", 1 if work == "sleep" else 60)
    with pytest.raises(XlaError) as raised:
        in_process(work, b"")
    assert reason in str(raised.value)


def test_without_jaxlib_the_remedy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (forms, xla_process):
        monkeypatch.setattr(module, "has_jaxlib", lambda: False)
    error = refused(write(tmp_path / "a.txt", TEXT))
    assert error.key == "file"
    assert "hlorank[collect]" in error.expected
    with pytest.raises(XlaError, match="pip install"):
        in_process("parse", b"")


BEFORE, AFTER = "before_optimizations", "after_layout_assignment"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("module_0001.jit_f.before_optimizations.txt", BEFORE),
        ("module_0001.jit_f.0003.passes_through_layout_assignment.after_dce.before_layout-assignment.hlo.pb", TRAINED),
        ("module_0001.jit_f.0003.p.after_dce.before_gpu-layout-assignment.txt.xz", TRAINED),
        ("module_0001.jit_f.0004.p.after_layout-assignment.before_sub-byte-size-setter.txt", AFTER),
        ("m.0012.simplification_after_layout_assignment.after_pipeline-start.before_algsimp.txt", AFTER),
        ("module_0001.jit_f.cpu_after_optimizations.hlo.pb", AFTER),
        ("module_0001.jit_f.sm_8.0_gpu_after_optimizations.txt", AFTER),
    ],
)
def test_the_name_of_a_dump_decides(name: str, expected: Stage, dot_and_reshape: HloModuleProto) -> None:
    for opcode in ("parameter", "call", "copy"):
        dot_and_reshape.computations[0].instructions[0].opcode = opcode
        assert stage_of(Path(name), dot_and_reshape) == expected
    # Only for a CPU and for TPUs, modules before any pass are compiled.
    needed = {one: needs_compilation(Path(name), dot_and_reshape, one) for one in ("cpu", "tpu-v3", "gpu", "")}
    assert needed == dict.fromkeys(("cpu", "tpu-v3"), expected == BEFORE) | dict.fromkeys(("gpu", ""), False)


def opcode(name: str) -> Callable[[HloModuleProto], None]:
    return lambda module: setattr(module.computations[0].instructions[0], "opcode", name)


def constants(*values: float) -> Callable[[HloModuleProto], None]:
    """Return a function that adds constants, each second one to a computation of its own."""

    def add(module: HloModuleProto) -> None:
        module.computations.add(name="other", id=99)
        for number, value in enumerate(values):
            one = module.computations[number % 2].instructions.add(opcode="constant", id=100 + number)
            one.literal.f32s.append(value)

    return add


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (opcode("call"), BEFORE),
        (opcode("copy"), AFTER),
        (opcode("bitcast"), AFTER),
        (opcode("fusion"), TRAINED),
        (opcode("parameter"), TRAINED),
        (lambda module: module.schedule.SetInParent(), AFTER),
        # Optimizations remove equal constants of a computation.
        (constants(1.0, 1.0, 2.0), TRAINED),
        (constants(1.0, 2.0, 1.0), BEFORE),
    ],
)
def test_without_a_name_the_content_decides(
    change: Callable[[HloModuleProto], None], expected: Stage, dot_and_reshape: HloModuleProto
) -> None:
    change(dot_and_reshape)
    assert stage_of(Path("own.pb"), dot_and_reshape) == expected
    assert needs_compilation(Path("own.pb"), dot_and_reshape, "cpu") == (expected != AFTER)


def test_stablehlo_is_before_any_pass(tmp_path: Path, dot_and_reshape: HloModuleProto) -> None:
    for name, text, expected in (("a.mlir", "module @m {}", BEFORE), ("b.txt", "HloModule m", TRAINED)):
        (tmp_path / name).write_text(text)
        assert stage_of(tmp_path / name, dot_and_reshape) == expected
