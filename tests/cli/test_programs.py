"""Programs named on a command line, with the small texts of the tests of forms."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.cli.programs import program_paths
from hlorank.config import ConfigError
from hlorank.hlo.reader import DUMPS, program_files, read_records
from hlorank.hlo.stage import stage_of

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


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    for name in DUMPED:
        (folder / name).write_text(TEXT)
    for name, content in OTHERS.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("stage", "chosen"),
    [
        (None, (0, 3)),
        ("before_optimizations", (0, 3)),
        ("after_optimizations", (1,)),
        ("after_fusion.before_dce", (2,)),
        ("none", ()),
    ],
)
def test_one_stage_of_a_folder_is_taken(
    dumps: Path, stage: str | None, chosen: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert program_files(dumps, stage) == sorted(dumps / DUMPED[place] for place in chosen)
    if stage is None:
        assert "2 programs" in caplog.text
        # Sorted: they are counted from a set, whose order differs from process to process.
        assert "2 other stages, 1 buffer-assignment.txt, 1 debug_options, 1 ll, 1 thunk_sequence.txt" in caplog.text


def test_the_module_right_before_layout_assignment_is_taken_first(dumps: Path) -> None:
    right = dumps / "module_0001.jit_f.0002.pipeline.after_dce.before_layout-assignment.txt"
    right.write_text(TEXT)
    assert program_files(dumps) == [right]
    for spelling in ("before_layout-assignment", "before_layout_assignment", "after_dce.before_layout_assignment"):
        assert program_files(dumps, spelling) == [right]
    assert len(program_files(dumps, DUMPS[1])) == 2


def test_where_no_dump_is_of_the_stage_those_there_are_named(dumps: Path, tmp_path: Path) -> None:
    _, (error,) = program_paths([dumps], "after_layout_assignment", None)
    assert error.found == "only before_dce, before_optimizations, cpu_after_optimizations"
    (tmp_path / "empty").mkdir()
    _, (error,) = program_paths([tmp_path / "empty"], "before_optimizations", None)
    assert error.found == "none"
    (tmp_path / "empty" / "graph.npz").touch()
    _, (error,) = program_paths([tmp_path / "empty"], None, None)
    assert ".npz" in str(error.found)


def test_files_without_a_stage_are_always_taken(dumps: Path) -> None:
    (dumps / "own.hlo").write_text(TEXT)
    (dumps / "batch_8.4.bf16.txt").write_text(TEXT)
    names = {path.name for path in program_files(dumps, "after_optimizations")}
    assert names == {DUMPED[1], "own.hlo", "batch_8.4.bf16.txt"}


def test_folders_globs_and_files(dumps: Path) -> None:
    inputs = [dumps, dumps / "*_g.*", dumps / "missing.txt", dumps / "none*"]
    paths, errors = program_paths(inputs, None, None)
    assert [path.name for path in paths] == [DUMPED[0], DUMPED[3], DUMPED[3]]
    assert [(error.key, str(error.file)) for error in errors] == [
        ("program", str(dumps / "missing.txt")),
        ("glob", str(dumps / "none*")),
    ]


def test_the_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert main(["inspect", "-", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["graph"], shown["nodes"], shown["configurable_nodes"]) == ("stdin", 2, 1)
    assert shown["file"] == "-"


def test_errors_of_the_standard_input_name_no_temporary_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["inspect", "-"]) == 2
    assert capsys.readouterr().err.startswith("error: -: ")


class TestFunctions:
    @pytest.fixture(autouse=True)
    def _module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("jax", reason="needs jax (extra collect)")
        (tmp_path / "own_model.py").write_text(
            "def step(x, y):\n    return x @ y\n\ndef fails(x):\n    return x + 'a'\n"
        )
        monkeypatch.chdir(tmp_path)

    def test_a_function_is_traced_in_another_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        before = {name for name in sys.modules if name.startswith("jax")}
        assert main(["inspect", "own_model:step", "--arguments", "f32[4,8] f32[8,2]", "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)
        assert (shown["graph"], shown["nodes"], shown["configurable_nodes"]) == ("own_model-step", 3, 1)
        assert shown["file"] == "own_model:step"
        assert {name for name in sys.modules if name.startswith("jax")} <= before

    def test_a_function_is_taken_right_before_layout_assignment(self) -> None:
        Path("called.py").write_text(
            "import jax\n\n@jax.jit\ndef inner(x):\n    return x @ x\n\ndef step(x):\n    return inner(x) + inner(x)\n"
        )
        found = {}
        for dump in (None, *DUMPS, "before_layout_assignment"):
            ((path,), _) = program_paths([Path("called:step")], dump, "f32[4,4]")
            (record,) = read_records(path)
            found[dump] = stage_of(path, record.module)
        assert found == {
            None: "before_layout_assignment",
            "before_layout-assignment": "before_layout_assignment",
            "before_layout_assignment": "before_layout_assignment",
            "before_optimizations": "before_optimizations",
        }
        with pytest.raises(ConfigError, match="after_optimizations"):
            program_paths([Path("called:step")], "after_optimizations", "f32[4,4]")

    @pytest.mark.parametrize(
        ("function", "arguments", "named"),
        [
            ("own_model:fails", "f32[2]", "TypeError"),
            ("own_model:stop", "f32[2]", "own_model:stop"),
            ("own_model:step", None, "--arguments"),
            ("own_model:nope", None, "own_model:step"),
            ("file.txt", "f32[2]", "--arguments"),
        ],
    )
    def test_what_cannot_be_traced_is_named(self, function: str, arguments: str | None, named: str) -> None:
        with pytest.raises(ConfigError, match=named) as error:
            program_paths([Path(function)], None, arguments)
        assert "\n" not in str(error.value)
