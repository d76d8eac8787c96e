"""Arguments of all benchmarks: their help, and refusals before anything is measured."""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank.files import DataError
from tests.benchmarks.conftest import BENCHMARKS, Outcome

NAMES = sorted(
    path.stem
    for path in BENCHMARKS.glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8") and not path.stem.startswith("attack_")
)
WITH_JSON = sorted(set(NAMES) - {"methods", "quality", "real"})


def assert_one_line(outcome: Outcome, status: int, *parts: str) -> None:
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.count("\n") == 1
    assert all(part in outcome.err for part in parts)


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_a_terminal_and_describes_every_option(
    name: str, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser) -> None:
        parsers.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", keep)
    with pytest.raises(SystemExit):
        runpy.run_path(str(benchmarks / f"{name}.py"), run_name="__main__")
    (parser,) = parsers
    assert max(map(len, parser.format_help().splitlines())) <= 80
    assert all(action.help for action in parser._actions)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *(("quality", option, "0") for option in ("--seeds", "--cpu-seconds", "--jobs", "--hours")),
        *(("quality", option, "-1") for option in ("--fold", "--seed")),
        *(("quality", "--cpu-seconds", value) for value in ("-1", "nan", "inf", "two")),
        *(("real", option, "0") for option in ("--seeds", "--cpu-seconds", "--jobs", "--folds")),
        *(("throughput", "--large", value) for value in ("-5", "0", "1.5")),
    ],
)
def test_wrong_numbers(name: str, option: str, value: str, run: Callable[..., Outcome]) -> None:
    needed = ["--collection", "tile/cpu", "--show"] if name == "quality" else []
    assert_one_line(run(name, *needed, f"{option}={value}"), 2, option, value)


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("quality", ["--collection", "layout/cpu/random", "--experiment", "best_tile"], "best_tile"),
        ("quality", ["--collection", "tile/nothing"], "nothing"),
        ("quality", ["--collection", "nothing"], "nothing"),
        ("quality", ["--collection", "layout/xla/default"], "layout/xla/default"),
        ("real", ["--collection", "tile/xla", "--experiment", "best_layout", "--show"], "best_layout"),
    ],
)
def test_experiments_of_another_kind(
    name: str, arguments: Sequence[str], found: str, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert_one_line(run(name, *arguments, "--work", tmp_path / "work"), 2, found)


@pytest.mark.parametrize("name", WITH_JSON)
def test_json_that_cannot_be_written(name: str, run: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "figures.json", tmp_path):
        assert_one_line(run(name, "--json", path), 1, str(path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_can_be_written(benchmarks: Path, tmp_path: Path) -> None:
    output_file = runpy.run_path(str(benchmarks / "command_line.py"))["output_file"]
    old = tmp_path / "old.json"
    old.write_text("old")
    assert [output_file(str(path)) for path in (old, tmp_path / "new" / "a.json")] == [old, tmp_path / "new" / "a.json"]
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "old.json"]


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("key"), 2), (DataError("key", "1", 2), 2), (OSError(2, "gone", "a"), 1)]
)
def test_status_of_errors(error: Exception, status: int, benchmarks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(benchmarks / "command_line.py"))["run"](fail)
    assert end.value.code == status
    assert capsys.readouterr().err.startswith("error: ")
