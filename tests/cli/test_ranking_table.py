"""Layouts that ranked configurations change, as a table and as CSV."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from hlorank.cli.main import main

Capture = pytest.CaptureFixture[str]


def test_the_table_names_instructions_and_layouts(model: Path, program: Path, capsys: Capture) -> None:
    arguments = ["rank", "--model", str(model), str(program), "--candidates", "9", "--top", "9"]
    assert main([*arguments, "--json"]) == 0
    (ranked,) = json.loads(capsys.readouterr().out)
    for row in ranked["top"]:
        assert main([*arguments, "--choose", str(row["rank"])]) == 0
        shown = capsys.readouterr().out.partition(f"rank {row['rank']}, configuration {row['configuration']}: ")[2]
        for change in row["changes"]:
            cells = (change["instruction"], change["opcode"], change["tensor"], "f32[8,8]", "the compiler's choice")
            after = f"{{{','.join(map(str, change['after']))}}}"
            assert [line.split("  ")[-1].strip() for line in shown.splitlines() if all(c in line for c in cells)] == [
                after
            ]
        assert row["changes"] or "every layout is the compiler's choice" in shown


def test_a_file_without_a_module_has_no_names(model: Path, graphs: list[Path], capsys: Capture) -> None:
    assert main(["rank", "--model", str(model), str(graphs[0])]) == 0
    assert "rank 1" not in capsys.readouterr().out


@pytest.mark.parametrize("printed", [False, True])
def test_changes_as_csv(
    printed: bool, model: Path, program: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    arguments = ["rank", "--model", str(model), str(program), str(graphs[0]), "--candidates", "9", "--top", "9"]
    assert main([*arguments, "--json"]) == 0
    ranked = json.loads(capsys.readouterr().out)
    target = tmp_path / "new" / "changes.csv"
    assert main([*arguments, "--changes", "-" if printed else str(target)]) == 0
    text = capsys.readouterr().out
    rows = [*csv.DictReader((text if printed else target.read_text()).splitlines())]
    assert printed or "the first 9 of" in text
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
