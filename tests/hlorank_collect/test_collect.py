from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.config import ConfigError
from hlorank.files import write_json
from hlorank_collect import collect as run
from hlorank_collect import program, task
from hlorank_collect.task import Progress, Task
from hlorank_collect.worker import Outcome

ABOUT: dict[str, Any] = {
    "measured": 8,
    "rounds": 30,
    "split_half_tau": 0.912,
    "noise_ceiling": 0.951,
    "runtime_ns": {"default": 110, "best": 100, "worst": 150},
    "left_out": {"x": "why"},
    "seconds": {"compile": 3.2, "measure": 1.4},
}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Task]:
    """Makes tasks of programs that need no jax; the one called `nobody` does not exist."""

    def named(name: str) -> program.Program:
        if name == "nobody":
            raise ConfigError("program 'nobody': not in the zoo")
        return program.Program(name, "family", lambda: (abs, ()))

    monkeypatch.setattr(task, "program_named", named)
    monkeypatch.setattr(task, "version", lambda package: "1.0")

    def one(name: str) -> Task:
        return Task(
            program=name,
            arguments=None,
            collection="layout:cpu:random",
            output=str(tmp_path),
            configurations=4,
            seed=0,
            rounds=4,
            fast_compile=False,
            time_limit=10.0,
            core=None,
        )

    return one


def measures(one: Task, *, hang_seconds: float, progress: Callable[[Progress], None]) -> Outcome:
    """Measures nothing, but writes the files; the program called `bad` can't be measured."""
    progress(Progress("compile", "c", 0.25))
    assert hang_seconds == 7
    if one.program == "bad":
        return Outcome(None, "it has side effects")
    npz = one.npz(one.program)
    npz.parent.mkdir(parents=True, exist_ok=True)
    npz.touch()
    write_json(npz.with_name(f"{one.program}.json"), {"fingerprint": one.fingerprint})
    return Outcome(ABOUT)


def collect(tasks: list[Task], lines: list[str] | None = None, **arguments: Any) -> run.Summary:
    echo = (lines if lines is not None else []).append
    given = {"check_machine": lambda: None, "supervise": measures, **arguments}
    return run.collect_layouts(tasks, hang_seconds=7, echo=echo, **given)


def test_one_that_cannot_be_measured_keeps_no_other_from_it(make: Callable[[str], Task]) -> None:
    lines: list[str] = []
    summary = collect([make(name) for name in ("a.b", "bad", "c")], lines)
    assert summary == run.Summary(["a.b", "c"], [], {"bad": "it has side effects"})
    assert re.fullmatch(
        r"\[1/3, 0:00:00 left\] a\.b: 8 configurations, 30 rounds, split-half tau 0\.91 \(ceiling 0\.95\), "
        r"max / min 1\.50, default / best 1\.10, 1 left out, 5 s",
        lines[0],
    )
    assert lines[1] == "[2/3, 0:00:00 left] bad: left out: it has side effects"
    assert len(lines) == 3


def test_what_is_measured_with_the_same_settings_is_not_measured_again(make: Callable[[str], Task]) -> None:
    collect([make("a"), make("b")])

    def fails(*_: object, **__: object) -> Outcome:
        raise AssertionError("measured again")

    lines: list[str] = []
    summary = collect([make("a"), make("b")], lines, check_machine=fails, supervise=fails)
    assert summary == run.Summary([], ["a", "b"], {})
    assert lines == ["2 programs are measured already"]
    assert collect([make("a"), make("c")]).measured == ["c"]
    again = [dataclasses.replace(make("a"), seed=1), dataclasses.replace(make("b"), time_limit=99.0, core=0)]
    assert collect(again) == run.Summary(["a"], ["b"], {})


def test_programs_are_known_and_the_machine_is_quiet_before_anything_is_measured(make: Callable[[str], Task]) -> None:
    measured: list[str] = []

    def supervise(one: Task, **_: object) -> Outcome:
        measured.append(one.program)
        return Outcome(None, "no")

    def busy() -> None:
        raise ConfigError("the machine is busy")

    with pytest.raises(ConfigError, match="nobody"):
        collect([make("a"), make("nobody")], supervise=supervise)
    with pytest.raises(ConfigError, match="busy"):
        collect([make("a")], supervise=supervise, check_machine=busy)
    assert measured == []


def test_a_ranking_of_equals_has_an_unknown_ceiling() -> None:
    assert "split-half tau unknown (ceiling unknown)" in run.line(
        {**ABOUT, "split_half_tau": None, "noise_ceiling": None}
    )
