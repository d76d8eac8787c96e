"""`hlorank inspect` and `hlorank convert`, and the programs that command lines name."""

import logging
from pathlib import Path

import pytest

from hlorank.cli.programs import find_programs
from hlorank.data.collection import read_graph
from hlorank.hlo.reader import DUMPS, program_files
from tests.cli.conftest import Command

TEXT = "HloModule m\nENTRY e {\n x = f32[2,2] parameter(0)\n ROOT y = f32[4] reshape(x)\n}\n"
DUMPED = (
    "module_0001.jit_f.before_optimizations.txt",
    "module_0001.jit_f.cpu_after_optimizations.txt",
    "module_0001.jit_f.0003.pipeline.after_fusion.before_dce.txt",
    "module_0002.jit_g.before_optimizations.txt",
)
OTHERS = {
    "module_0001.jit_f.cpu_after_optimizations-buffer-assignment.txt": "BufferAssignment:",
    "module_0001.jit_f.thunk_sequence.txt": "000: kCopy",
    "module_0001.jit_f.ir-no-opt.ll": "; ModuleID",
    "module_0001.jit_f.debug_options": "xla_dump_to: 1",
}


def test_a_record_and_its_npz_file_have_equal_summaries(record: Path, tmp_path: Path, call: Command) -> None:
    expected = {
        "graph": "record",
        "kind": "layout",
        "nodes": 2,
        "edges": 1,
        "opcodes": 2,
        "configurable_nodes": 1,
        "configurations": 3,
        "distinct": 2,
        "min_runtime_ns": 2_000,
        "max_runtime_ns": 3_000,
    }
    assert call.json("inspect", record) == [expected | {"file": str(record)}]
    call("convert", record, tmp_path)
    assert call.json("inspect", tmp_path / "record.npz") == [expected | {"file": str(tmp_path / "record.npz")}]


def test_dumps_have_no_runtimes_and_may_be_kernels(program: Path, nothing: Path, call: Command) -> None:
    keys = ("kind", "configurable_nodes", "min_runtime_ns", "max_runtime_ns")
    for path, values in ((program, ["layout", 1, None, None]), (nothing, ["tile", 0, None, None])):
        (summary,) = call.json("inspect", path)
        assert [summary[key] for key in keys] == values


def test_several_files_are_a_table(record: Path, program: Path, call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = call("inspect", record, "none.npz", program, status=2)
    assert "2,000 .. 3,000" in out
    assert "withheld" in out
    assert error.startswith("error: none.npz: ")
    long = record.rename(record.with_name(f"{'n' * 60}.pb"))
    monkeypatch.setenv("COLUMNS", "80")
    head, _, row, *_ = call("inspect", long, program)[0].splitlines()
    assert head.split() == ["graph", "nodes", "configs"]
    assert row.split() == ["n" * 60, "2", "3"]


def test_files_and_folders_are_converted(program: Path, record: Path, tmp_path: Path, call: Command) -> None:
    names = ["jit_f.npz", "record.npz"]
    printed, _ = call("convert", program.parent, record, tmp_path / "out")
    assert printed.splitlines() == [str(tmp_path / "out" / name) for name in names]
    assert read_graph(tmp_path / "out" / "jit_f.npz", "layout").measurements.withheld
    runtimes = read_graph(tmp_path / "out" / "record.npz", "layout").measurements.runtime
    assert runtimes.tolist() == [3_000, 2_000, 2_500]


@pytest.mark.parametrize(("unwritable", "status"), [(False, 2), (True, 1)])
def test_files_that_fail_are_named_and_the_others_converted(
    unwritable: bool, status: int, program: Path, record: Path, tmp_path: Path, call: Command
) -> None:
    wrong = tmp_path / "out" / "jit_f.npz" if unwritable else program
    if unwritable:
        wrong.mkdir(parents=True)
    else:
        program.write_text("Module jit_f")
    out, error = call("convert", program, record, tmp_path / "out", status=status)
    assert error.startswith(f"error: {wrong}: ")
    assert error.count("\n") == 1
    assert out == f"{tmp_path / 'out' / 'record.npz'}\n"


def test_nothing_to_configure(
    program: Path, nothing: Path, tmp_path: Path, call: Command, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    assert call("convert", nothing, program, out) == (f"{out / 'jit_f.npz'}\n", "")
    (notice,) = caplog.messages
    assert str(nothing) in notice
    call.error("convert", nothing, out)


def test_files_with_equal_names_are_refused_before_one_is_written(program: Path, tmp_path: Path, call: Command) -> None:
    twin = tmp_path / "jit_f.pb"
    twin.write_bytes(program.read_bytes())
    assert call.error("convert", program, twin, tmp_path / "out").startswith(f"{twin}: file name: ")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    for name, content in {**dict.fromkeys(DUMPED, TEXT), **OTHERS}.items():
        (folder / name).write_text(content)
    return folder


def test_one_stage_of_a_folder_is_taken(dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
    def taken(stage: str | None) -> list[str]:
        return [path.name for path in program_files(dumps, stage)]

    caplog.set_level(logging.INFO)
    assert taken(None) == [DUMPED[0], DUMPED[3]]
    assert "2 programs" in caplog.text
    # Sorted: they are counted from a set, whose order differs from process to process.
    assert "2 other stages, 1 buffer-assignment.txt, 1 debug_options, 1 ll, 1 thunk_sequence.txt" in caplog.text
    assert taken("after_fusion.before_dce") == [DUMPED[2]]
    assert taken("none") == []
    right = "module_0001.jit_f.0002.pipeline.after_dce.before_layout-assignment.txt"  # taken first of the module
    (dumps / right).write_text(TEXT)
    spellings = ("before_layout-assignment", "before_layout_assignment", "after_dce.before_layout_assignment")
    assert [*map(taken, (None, *spellings))] == [[right, DUMPED[3]], *[[right]] * 3]
    assert taken(DUMPS[1]) == [DUMPED[0], DUMPED[3]]
    for name in ("own.hlo", "batch_8.4.bf16.txt"):  # without a stage: always taken
        (dumps / name).write_text(TEXT)
    assert taken("after_optimizations") == ["batch_8.4.bf16.txt", DUMPED[1], "own.hlo"]


def test_where_no_dump_is_of_the_stage_those_there_are_named(dumps: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (npz := tmp_path / "npz").mkdir()
    (npz / "graph.npz").touch()
    named = "only before_dce, before_optimizations, cpu_after_optimizations"
    for folder, stage, found in ((dumps, "after_layout_assignment", named), (empty, None, "none"), (npz, None, ".npz")):
        _, (error,) = find_programs([str(folder)], stage, None)
        assert found in str(error.found)


def test_folders_globs_and_files(dumps: Path) -> None:
    inputs = [dumps, dumps / "*_g.*", dumps.parent / "du*", dumps / "missing.txt", dumps / "none*"]
    programs, errors = find_programs([*map(str, inputs)], None, None)
    assert [program.path.name for program in programs] == [DUMPED[0], DUMPED[3], DUMPED[3], DUMPED[0], DUMPED[3]]
    assert [program.label for program in programs] == [str(program.path) for program in programs]
    assert [(error.key, str(error.file)) for error in errors] == [
        ("program", str(dumps / "missing.txt")),
        ("glob", str(dumps / "none*")),
    ]
