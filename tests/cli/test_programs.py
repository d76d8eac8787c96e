"""Programs named on a command line, with the small texts of the tests of forms."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.cli.programs import find_programs
from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
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
    for name in ("own.hlo", "batch_8.4.bf16.txt"):  # without a stage: always taken
        (dumps / name).write_text(TEXT)
    names = {path.name for path in program_files(dumps, "after_optimizations")}
    assert names == {DUMPED[1], "own.hlo", "batch_8.4.bf16.txt"}


def test_where_no_dump_is_of_the_stage_those_there_are_named(dumps: Path, tmp_path: Path) -> None:
    _, (error,) = find_programs([str(dumps)], "after_layout_assignment", None)
    assert error.found == "only before_dce, before_optimizations, cpu_after_optimizations"
    empty = tmp_path / "empty"
    empty.mkdir()
    _, (error,) = find_programs([str(empty)], "before_optimizations", None)
    assert error.found == "none"
    (empty / "graph.npz").touch()
    _, (error,) = find_programs([str(empty)], None, None)
    assert ".npz" in str(error.found)


def test_folders_globs_and_files(dumps: Path) -> None:
    inputs = [dumps, dumps / "*_g.*", dumps / "missing.txt", dumps / "none*"]
    programs, errors = find_programs([*map(str, inputs)], None, None)
    assert [program.path.name for program in programs] == [DUMPED[0], DUMPED[3], DUMPED[3]]
    assert [program.label for program in programs] == [str(program.path) for program in programs]
    assert [(error.key, str(error.file)) for error in errors] == [
        ("program", str(dumps / "missing.txt")),
        ("glob", str(dumps / "none*")),
    ]


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
        for dump in (None, DUMPS[1], "before_layout_assignment"):
            ((program,), _) = find_programs(["called:step"], dump, "f32[4,4]")
            (record,) = read_records(program.path)
            found[dump] = stage_of(program.path, record.module)
        assert found == {
            None: "before_layout_assignment",
            "before_layout_assignment": "before_layout_assignment",
            "before_optimizations": "before_optimizations",
        }
        with pytest.raises(ConfigError, match="after_optimizations"):
            find_programs(["called:step"], "after_optimizations", "f32[4,4]")

    @pytest.mark.parametrize(
        ("function", "arguments", "named"),
        [
            ("own_model:fails", "f32[2]", "TypeError"),
            ("own_model:stop", "f32[2]", "own_model:stop"),
            ("own_model:step", None, "--arguments"),
            ("file.txt", "f32[2]", "--arguments"),
        ],
    )
    def test_what_cannot_be_traced_is_named(self, function: str, arguments: str | None, named: str) -> None:
        with pytest.raises(ConfigError, match=named) as error:
            find_programs([function], None, arguments)
        assert "\n" not in str(error.value)


MODULE = """HloModule m

ENTRY e {
  x = f32[8,4]{1,0} parameter(0)
  w = f32[4,16]{1,0} parameter(1)
  ROOT y = f32[8,16]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_dimension_without_a_bound_is_named_with_its_instruction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")
    (tmp_path / "bad.txt").write_text(MODULE.replace("f32[8,4]{1,0} par", "f32[?,4]{1,0} par"))
    assert main(["inspect", str(tmp_path / "bad.txt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'bad.txt'}: computations[0].instructions[0] (x): ")


@pytest.mark.parametrize(
    ("old", "new", "warnings"),
    [
        ("f32[8,4]{1,0} par", "f32[<=8,4]{1,0} par", ["dynamic"]),
        ("f32[4,16]{1,0} par", "s4[4,16]{1,0} par", ["'s4' (1)"]),
        ("ENTRY e {\n", "ENTRY e {\n  t = token[] parameter(2)\n", []),
        (
            "w = f32[4,16]{1,0} parameter(1)",
            "p = (f32[4,16]{1,0}, (s32[], token[])) parameter(1)\n  w = f32[4,16]{1,0} get-tuple-element(p), index=0",
            [],
        ),
    ],
)
def test_unusual_types_and_shapes_are_converted_and_ranked(
    old: str, new: str, warnings: list[str], tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")
    assert old in MODULE
    path = tmp_path / "unusual.txt"
    path.write_text(MODULE.replace(old, new))
    with caplog.at_level(logging.WARNING, logger="hlorank.hlo.reader"):
        assert main(["convert", str(path), str(tmp_path)]) == 0
    messages = [record.getMessage() for record in caplog.records if record.name == "hlorank.hlo.reader"]
    assert len(messages) == len(warnings)
    assert all(warning in message for warning, message in zip(warnings, messages, strict=True))
    graph = read_graph(tmp_path / "unusual.npz", "layout")
    assert graph.graph.node_feat.min() >= 0
    assert isinstance(graph.configurations, LayoutConfigurations)
    assert len(graph.configurations.node_ids) == 1
    assert main(["rank", "--model", str(model), str(path)]) in (0, 3)  # 3: not a module right before layout assignment
