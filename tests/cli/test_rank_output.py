"""Output of `hlorank rank`: layouts that configurations change, exports, and stages of modules."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from pathlib import Path

import pytest

import hlorank
from hlorank.cli.main import main
from hlorank.files import read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.reader import read_records

TEXT = """HloModule m
ENTRY e {
  x = f32[2,3] parameter(0)
  y = f32[3,2] parameter(1)
  ROOT z = f32[2,2] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def no_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.cli.rank_output.has_jaxlib", lambda: False)


def constraints(module: HloModuleProto) -> list[list[int]]:
    (computation,) = module.computations
    calls = (node for node in computation.instructions if node.custom_call_target == "LayoutConstraint")
    return [[*node.shape.layout.minor_to_major] for node in calls]


def test_the_table_names_instructions_and_layouts(model: Path, program: Path, capsys: Capture) -> None:
    arguments = ["rank", "--model", str(model), str(program), "--candidates", "9", "--top", "9"]
    assert main([*arguments, "--json"]) == 0
    (ranked,) = json.loads(capsys.readouterr().out)
    for row in ranked["top"][:3]:
        assert main([*arguments, "--choose", str(row["rank"])]) == 0
        shown = capsys.readouterr().out
        assert "configurations are drawn; 0 is the compiler's default" in shown
        shown = shown.partition(f"rank {row['rank']}, configuration {row['configuration']}: ")[2]
        for change in row["changes"]:
            cells = (change["instruction"], change["opcode"], change["tensor"], "f32[8,8]", "the compiler's choice")
            after = f"{{{','.join(map(str, change['after']))}}}"
            (line,) = [line for line in shown.splitlines() if all(cell in line for cell in cells)]
            assert line.split("  ")[-1].strip() == after
        assert row["changes"] or "every layout is the compiler's choice" in shown


def test_changes_as_csv(model: Path, program: Path, graphs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    arguments = ["rank", "--model", str(model), str(program), str(graphs[0]), "--candidates", "9", "--top", "9"]
    assert main([*arguments, "--json"]) == 0
    ranked = json.loads(capsys.readouterr().out)
    target = tmp_path / "new" / "changes.csv"
    assert main([*arguments, "--changes", str(target)]) == 0
    assert "the first 9 of" in capsys.readouterr().out
    assert main([*arguments, "--changes", "-"]) == 0
    text = capsys.readouterr().out.replace("\r\n", "\n")
    assert text == target.read_text()
    rows = [*csv.DictReader(text.splitlines())]
    expected = [
        (graph["graph"], row["rank"], change.get("instruction", ""), change.get("after"))
        for graph in ranked
        for row in graph["top"]
        for change in row.get("changes") or [{}]
    ]
    found = [
        (row["graph"], int(row["rank"]), row["instruction"], json.loads(f"[{row['after'][1:-1]}]") or None)
        for row in rows
    ]
    assert found == expected


def test_a_dump_of_another_stage_has_a_status_of_its_own(
    model: Path, program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    other = Path(shutil.copy(program, tmp_path / "module_0001.jit_g.before_optimizations.hlo.pb"))
    arguments = ["rank", "--model", str(model), str(program), str(other)]
    assert main([*arguments, "--json"]) == 3
    found = [graph["stage"]["found"] for graph in json.loads(capsys.readouterr().out)]
    assert found == ["before_layout_assignment", "before_optimizations"]
    (warning,) = caplog.messages
    assert str(other) in warning
    assert main([*arguments, str(tmp_path / "missing.pb")]) == 2


@pytest.mark.usefixtures("no_jaxlib")
def test_the_chosen_configuration_is_exported(
    model: Path, program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    folder = tmp_path / "exported"
    arguments = ["rank", "--model", str(model), str(program), "--candidates", "9", "--export", str(folder), "--json"]
    for choose in (1, 4):
        with caplog.at_level(logging.WARNING):
            assert main([*arguments, "--choose", str(choose)]) == 0
        assert "jit_f.hlo.txt" in caplog.messages[-1]  # not written
        (ranked,) = json.loads(capsys.readouterr().out)
        chosen = ranked["top"][choose - 1]
        assert ranked["exported"] == [str(folder / "jit_f.json"), str(folder / "jit_f.hlo.pb")]
        saved = read_json(folder / "jit_f.json")
        expected = (choose, chosen["score"], "layout:synthetic:random")
        assert (saved["rank"], saved["score"], saved["collection"]) == expected
        found = [
            tensor["minor_to_major"]
            for instruction in saved["instructions"]
            for tensor in (*instruction["operands"], instruction["output"])  # the order of the constraints
            if tensor["minor_to_major"] is not None
        ]
        assert sorted(found) == sorted(change["after"] for change in chosen["changes"])
        data = (folder / "jit_f.hlo.pb").read_bytes()
        assert constraints(HloModuleProto.FromString(data)) == found
        assert hlorank.apply_configuration(program, folder / "jit_f.json") == data


def test_the_text_is_that_of_the_protobuf(model: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")
    source, out = tmp_path / "own.hlo", tmp_path / "out"
    source.write_text(TEXT)
    assert main(["rank", "--model", str(model), str(source), "--export", str(out), "--choose", "3", "--json"]) == 0
    (ranked,) = json.loads(capsys.readouterr().out)
    assert ranked["exported"][2] == str(out / "own.hlo.txt")
    ((protobuf,), (written,)) = ([*read_records(Path(path))] for path in ranked["exported"][1:])
    assert constraints(written.module) == constraints(protobuf.module) != []
    assert hlorank.apply_configuration(source, out / "own.json") == protobuf.module.SerializeToString()


@pytest.mark.usefixtures("no_jaxlib")
def test_what_cannot_be_exported_is_named(
    model: Path, program: Path, graphs: list[Path], record: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = ["--export", str(tmp_path / "out")]
    assert main(["rank", "--model", str(model), str(graphs[0]), str(record), str(program), *out]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [str(path) in line for path, line in zip((graphs[0], record), errors, strict=True)] == [True, True]
    assert (tmp_path / "out" / "jit_f.json").is_file()
    few = ["--candidates", "3", "--choose", "5"]
    assert main(["rank", "--model", str(model), str(program), *out, *few]) == 2
