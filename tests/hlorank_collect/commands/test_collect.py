from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import read_json
from hlorank_collect import machine
from hlorank_collect.record import read_left_out

SHAPES = ["--arguments", "f32[8,16] f32[16,8]"]


def collect(*arguments: str) -> int:
    return main(["collect", *arguments, "--out", "out", "--configurations", "8", "--max-rounds", "6"])


def test_programs_are_measured_once(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    names = ["user_programs:dots", "user_programs:nothing", "user_programs:reshapes"]
    assert collect(*names, *SHAPES, "--allow-busy") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: user_programs-nothing-")
    ((name, reason),) = read_left_out(programs / "out")["layout:cpu:random"].items()
    assert captured.err == f"error: {name}: {reason}\n"
    assert "busy" in caplog.text
    assert len(captured.out.splitlines()) == 3
    files = sorted((programs / "out" / "layout" / "cpu" / "random").iterdir())
    assert [path.suffix for path in files] == [".json", ".npz"] * 2
    for path in files[1::2]:
        found = read_graph(path, "layout")
        assert isinstance(found.configurations, LayoutConfigurations)
        assert len(found.configurations) == 8
        assert len(np.unique(found.configurations.codes, axis=0)) == 8
        about = read_json(path.with_name(path.name.replace(".npz", ".json")))
        assert about["core"] == max(os.sched_getaffinity(0))
        assert about["xla_flags"].endswith("intra_op_parallelism_threads=1")

    before = {path: path.read_bytes() for path in files}
    assert collect(names[0], names[2], *SHAPES) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert {path: path.read_bytes() for path in files} == before


MODULE = """HloModule dots

ENTRY %main {
  %x = f32[8,16] parameter(0)
  %w = f32[16,4] parameter(1)
  ROOT %d = f32[8,4] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_of_folders_and_globs_what_works_is_measured(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "dumps").mkdir()
    for name, text in (("good", MODULE), ("bad", MODULE.replace("dot(", "dots("))):
        (programs / "dumps" / f"module.{name}.before_optimizations.txt").write_text(text)
    (programs / "dumps" / "module.good.after_optimizations.txt").write_text(MODULE)
    (programs / "other.hlo").write_text(MODULE)
    assert collect("dumps", "oth*.hlo", "--scale-batch", "2", "--allow-busy") == 1
    captured = capsys.readouterr()
    assert "module.bad.before_optimizations.b2: " in captured.err
    assert "line 6" in captured.err
    written = {path.stem for path in (programs / "out").rglob("*.npz")}
    assert written == {"module.good.before_optimizations.b2", "other.b2"}
    assert read_json(next((programs / "out").rglob("other.b2.json")))["scale_batch"] == 2
    assert collect("other.hlo", "--scale-batch", "2") == 0
    assert "measured already" in capsys.readouterr().out
