from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.data.collection import read_graph


def test_files_and_folders_are_converted(
    dump: Path, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(dump.parent), str(record), str(out), "--extra"]) == 0
    names = ["jit_f.npz", "jit_f.extra.npz", "record.npz", "record.extra.npz"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    assert read_graph(out / "jit_f.npz", "layout").measurements.withheld
    assert read_graph(out / "record.npz", "layout").measurements.runtime.tolist() == [3_000, 2_000, 2_500]


def test_files_that_fail_are_named_and_the_others_converted(
    dump: Path, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump.write_text("Module jit_f")
    assert main(["convert", str(dump), str(record), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {dump}: file: expected")
    assert captured.err.count("\n") == 1
    assert captured.out == f"{tmp_path / 'out' / 'record.npz'}\n"


def test_a_file_that_cannot_be_written_is_status_one(
    dump: Path, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "jit_f.npz").mkdir(parents=True)
    assert main(["convert", str(dump), str(record), str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {tmp_path / 'out' / 'jit_f.npz'}: ")
    assert captured.err.count("\n") == 1
    assert captured.out == f"{tmp_path / 'out' / 'record.npz'}\n"


def test_a_dump_with_nothing_to_configure_is_left_out(
    dump: Path,
    nothing: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
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


def test_inputs_with_equal_names_and_empty_folders(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = tmp_path / "jit_f.pb"
    twin.write_bytes(dump.read_bytes())
    assert main(["convert", str(dump), str(twin), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {twin}: file name: ")
    (tmp_path / "empty").mkdir()
    assert not (tmp_path / "out").exists()
    assert main(["convert", str(tmp_path / "empty"), str(dump), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {tmp_path / 'empty'}: folder: ")
    assert captured.out == f"{tmp_path / 'out' / 'jit_f.npz'}\n"
