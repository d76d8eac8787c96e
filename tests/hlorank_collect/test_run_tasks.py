from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import write_json
from hlorank_collect import program, task
from hlorank_collect.child_process import Outcome
from hlorank_collect.record import read_left_out, record_left_out
from hlorank_collect.run_tasks import Summary, run_tasks
from hlorank_collect.task import LayoutTask, Progress
from tests.hlorank_collect.tasks import small_task

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
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LayoutTask]:
    """Makes tasks of programs that need no jax; the program `nobody` does not exist."""

    def named(name: str, arguments: str | None) -> program.JaxProgram:
        if name == "nobody":
            raise ConfigError("program 'nobody': no such file")
        return program.JaxProgram(name, "family", lambda: (abs, ()))

    monkeypatch.setattr(task, "user_program", named)
    monkeypatch.setattr(task, "version", lambda package: "1.0")

    def one(name: str) -> LayoutTask:
        return small_task(
            LayoutTask, program=name, collection="layout:cpu:random", output=str(tmp_path), time_limit=10.0
        )

    return one


def measures(one: LayoutTask, *, hang_seconds: float, progress: Callable[[Progress], None]) -> Outcome:
    """Write the files without measuring; the program `bad` cannot be measured."""
    progress(Progress("compile", "c", 0.25))
    assert hang_seconds == 7
    if one.program == "bad":
        return Outcome(None, "it has side effects")
    npz = one.npz(one.program)
    npz.parent.mkdir(parents=True, exist_ok=True)
    npz.touch()
    write_json(npz.with_name(f"{one.program}.json"), {"fingerprint": one.fingerprint})
    return Outcome(ABOUT)


def collect(tasks: list[LayoutTask], lines: list[str] | None = None, **arguments: Any) -> Summary:
    echo = (lines if lines is not None else []).append
    given = {"check_machine": lambda: None, "supervise": measures, **arguments}
    return run_tasks(tasks, hang_seconds=7, echo=echo, **given)


def test_a_program_that_cannot_be_measured_does_not_affect_the_others(make: Callable[[str], LayoutTask]) -> None:
    lines: list[str] = []
    summary = collect([make(name) for name in ("a.b", "bad", "c")], lines)
    assert summary == Summary(["a.b", "c"], [], {"bad": "it has side effects"})
    assert lines[:2] == [
        "[1/3, 0:00:00 left] a.b: 8 configurations, 30 rounds, split-half tau 0.91 (ceiling 0.95), max / min 1.50, "
        "default / best 1.10, 1 left out, 5 s",
        "[2/3, 0:00:00 left] bad: left out: it has side effects",
    ]


def test_a_cluster_measures_what_one_machine_does(make: Callable[[str], LayoutTask], tmp_path: Path) -> None:
    cores: list[int | None] = []

    def on_node(one: LayoutTask, **settings: Any) -> Outcome:
        cores.append(one.core)
        return measures(one, **settings)

    given: dict[str, Any] = {"supervise": on_node, "cluster": partial(map_graphs, settings=SERIAL)}
    tasks = [dataclasses.replace(make(name), core=core) for name, core in (("a.b", None), ("bad", 0), ("c", None))]
    assert collect(tasks, **given) == Summary(["a.b", "c"], [], {"bad": "it has side effects"})
    assert cores == [max(os.sched_getaffinity(0)), 0, max(os.sched_getaffinity(0))]
    assert collect(tasks, **given) == Summary([], ["a.b", "c"], {"bad": "it has side effects"})

    def busy() -> None:
        raise ConfigError("the machine is busy")

    with pytest.raises(ConfigError, match=r"^node .*: the machine is busy$"):
        collect([make("d")], check_machine=busy, **given)


def test_programs_measured_with_the_same_settings_are_not_measured_again(make: Callable[[str], LayoutTask]) -> None:
    collect([make("a"), make("b")])
    lines: list[str] = []
    assert collect([make("a"), make("b")], lines, check_machine=None, supervise=pytest.fail) == Summary(
        [], ["a", "b"], {}
    )
    assert lines == ["measured already: 2 programs"]
    again = [dataclasses.replace(make("a"), seed=1), dataclasses.replace(make("b"), time_limit=99.0, core=0)]
    assert collect([*again, make("c")]) == Summary(["a", "c"], ["b"], {})


def test_a_program_is_left_out_until_it_is_measured(make: Callable[[str], LayoutTask], tmp_path: Path) -> None:
    collection = Collection.parse("layout:cpu:random")
    record = partial(record_left_out, tmp_path, collection)
    collect([make("a"), make("bad")], record=record)
    assert read_left_out(tmp_path) == {"layout:cpu:random": {"bad": "it has side effects"}}

    record_left_out(tmp_path, collection, "a", "other settings")
    collect([make("a")], record=record)  # measured before
    assert read_left_out(tmp_path) == {"layout:cpu:random": {"bad": "it has side effects"}}
    collect([make("bad")], record=record, supervise=lambda *_, **__: Outcome(ABOUT))
    assert read_left_out(tmp_path) == {}


def test_unknown_programs_and_a_busy_machine_are_refused_before_anything_is_measured(
    make: Callable[[str], LayoutTask],
) -> None:
    def busy() -> None:
        raise ConfigError("the machine is busy")

    for names, match in ((["a", "nobody"], "nobody"), (["a", "a"], r"\ba\b.*\ba\b"), (["a"], "busy")):
        with pytest.raises(ConfigError, match=match):
            collect([make(name) for name in names], check_machine=busy, supervise=pytest.fail)
