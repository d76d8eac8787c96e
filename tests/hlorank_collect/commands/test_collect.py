from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import read_json
from hlorank_collect import machine
from hlorank_collect.record import read_left_out

PROGRAMS = """
import jax.numpy as jnp

def dots(x, w):
    return jnp.tanh(x @ w).reshape(4, -1)

def reshapes(x, w):
    return jnp.exp(x).T.reshape(16, -1).T @ w.reshape(-1, 8)

def nothing(x, w):
    return x.sum() + w.sum()
"""
SHAPES = ["--arguments", "f32[16,8] f32[8,16]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no program"),
        (["m:f", "--allow-busy"], "'m:f'"),
        (["mlp", *SHAPES], "'mlp'"),
        (["m:f", "--configurations", "1"], "--configurations 1"),
        (["m:f", "--max-rounds", "0"], "--max-rounds 0"),
        (["m:f", "--core", "12345"], "--core 12345"),
        (["m:f", "--collection", "layout:xla:random"], "layout:xla:random"),
        (["m:f", "--collection", "tile:xla"], "tile:xla"),
        (["m:f", "--collection", "layout:cpu"], "layout:cpu"),
        (["m:f", "--collection", "tile:cpu"], "c-loop-nests"),
        (["m:f", "--scale-batch", "0"], "--scale-batch 0"),
        (["m:f", "--scale-batch", "2"], "--scale-batch"),
        (["no-such.hlo"], "no-such.hlo: "),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    assert main(["collect", *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def folder(user_module: Callable[[str, str], Path]) -> Path:
    """The current folder, with a module of small programs."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    return user_module("cli_programs", PROGRAMS)


def collect(*arguments: str) -> int:
    return main(["collect", *arguments, "--out", "out", "--configurations", "8", "--max-rounds", "6"])


def test_programs_are_measured_once(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    names = ["cli_programs:dots", "cli_programs:nothing", "cli_programs:reshapes"]
    assert collect(*names, *SHAPES, "--allow-busy") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: cli_programs-nothing-")
    ((name, reason),) = read_left_out(folder / "out")["layout:cpu:random"].items()
    assert captured.err == f"error: {name}: {reason}\n"
    assert "busy" in caplog.text
    assert len(captured.out.splitlines()) == 3
    files = sorted((folder / "out" / "layout" / "cpu" / "random").iterdir())
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


def test_of_folders_and_globs_what_works_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dumps").mkdir()
    for name, text in (("good", MODULE), ("bad", MODULE.replace("dot(", "dots("))):
        (folder / "dumps" / f"module.{name}.before_optimizations.txt").write_text(text)
    (folder / "dumps" / "module.good.after_optimizations.txt").write_text(MODULE)
    (folder / "other.hlo").write_text(MODULE)
    assert collect("dumps", "oth*.hlo", "--scale-batch", "2", "--allow-busy") == 1
    captured = capsys.readouterr()
    assert "module.bad.before_optimizations.b2: " in captured.err
    assert "line 6" in captured.err
    written = {path.stem for path in (folder / "out").rglob("*.npz")}
    assert written == {"module.good.before_optimizations.b2", "other.b2"}
    assert read_json(next((folder / "out").rglob("other.b2.json")))["scale_batch"] == 2
    assert collect("other.hlo", "--scale-batch", "2") == 0
    assert "measured already" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "autotune"])
def test_a_real_model_is_measured_with_one_example(command: str, folder: Path, shared_data: Path) -> None:
    settings = {
        "collect": ["--collection", "layout:cpu:models", "--configurations", "4", "--max-rounds", "4"],
        "autotune": ["--random", "--candidates", "4", "--top", "2", "--rounds", "4"],
    }
    file = shared_data / "hlo" / "imagenette.inference.hlo.txt.xz"
    arguments = [str(file), "--scale-batch", "1", "--out", "out", "--allow-busy", *settings[command]]
    assert main([command, *arguments]) == 0
    about = read_json(next((folder / "out").rglob("imagenette.inference.b1.json")))
    assert about["measured"] == 4 if command == "collect" else len(about["measured"]) == 2


@pytest.mark.parametrize(("out", "status"), [("cli_programs.py/own", 2), ("/proc/own", 1)])
@pytest.mark.parametrize("command", [["collect"], ["autotune", "--random"]])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: list[str], out: str, status: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", None)
    assert main([*command, "cli_programs:dots", *SHAPES, "--out", out]) == status
