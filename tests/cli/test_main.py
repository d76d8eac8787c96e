from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hlorank.cli.main import main, make_parser
from hlorank.version import __version__

HEAVY = {"torch", "lightning", "mlflow", "jax", "sklearn", "scipy", "pandas", "jinja2", "dvc", "hydra"}


NAMES = [
    name
    for action in make_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
    for name in action.choices
]


def test_help_imports_nothing_heavy() -> None:
    """In one process: what a command imports, the ones after it have imported too."""
    calls = [[], ["--help"], *([name, "--help"] for name in NAMES)]
    code = f"""
import sys
from hlorank.cli.main import main
for arguments in {calls!r}:
    try:
        main(arguments)
    except SystemExit:
        pass
    heavy = sorted(set(sys.modules) & {HEAVY!r})
    assert not heavy, (arguments, heavy)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""
    for arguments in calls:
        assert f"usage: {' '.join(['hlorank', *arguments[:-1]])}" in ended.stdout


def test_the_list_of_commands_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert re.search(rf"^ +{name} +\w", shown, re.MULTILINE), name
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"hlorank {__version__}\n"


def test_a_file_that_can_not_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "spec.json").write_text('{"collection": "tile:cpu", "method": "gst"}')
    (tmp_path / "run.json").write_text("{}")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "file" / "report.html")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/file: File exists\n"


def test_an_error_of_the_program_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("no file")

    monkeypatch.setattr("hlorank.cli.best.run", broken)
    with pytest.raises(RuntimeError, match="no file"):
        main(["best"])


def test_wrong_usage_is_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["convert", "a.pb"])
    assert "FOLDER" in capsys.readouterr().err


def test_a_reader_that_stops_early_ends_the_command_quietly(
    dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit, match="141"):
            main(["inspect", str(dump)])
    assert capsys.readouterr().err == ""
