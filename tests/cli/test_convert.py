"""`hlorank convert`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.data.collection import read_graph

Capture = pytest.CaptureFixture[str]


def test_files_and_folders_are_converted(dump: Path, record: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(dump.parent), str(record), str(out), "--extra"]) == 0
    names = ["jit_f.npz", "jit_f.extra.npz", "record.npz", "record.extra.npz"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    assert read_graph(out / "jit_f.npz", "layout").measurements.withheld
    assert read_graph(out / "record.npz", "layout").measurements.runtime.tolist() == [3_000, 2_000, 2_500]


@pytest.mark.parametrize(("unwritable", "status"), [(False, 2), (True, 1)])
def test_files_that_fail_are_named_and_the_others_converted(
    unwritable: bool, status: int, dump: Path, record: Path, tmp_path: Path, capsys: Capture
) -> None:
    wrong = tmp_path / "out" / "jit_f.npz" if unwritable else dump
    if unwritable:
        wrong.mkdir(parents=True)
    else:
        dump.write_text("Module jit_f")
    assert main(["convert", str(dump), str(record), str(tmp_path / "out")]) == status
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {wrong}: ")
    assert captured.err.count("\n") == 1
    assert captured.out == f"{tmp_path / 'out' / 'record.npz'}\n"


def test_a_dump_with_nothing_to_configure_is_left_out(
    dump: Path, nothing: Path, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(nothing), str(dump), str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'jit_f.npz'}\n"
    (notice,) = caplog.messages
    assert str(nothing) in notice
    assert main(["convert", str(nothing), str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("error: ") == 1


def test_files_with_equal_names_are_refused_before_one_is_written(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    twin = tmp_path / "jit_f.pb"
    twin.write_bytes(dump.read_bytes())
    assert main(["convert", str(dump), str(twin), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {twin}: file name: ")
    assert not (tmp_path / "out").exists()
