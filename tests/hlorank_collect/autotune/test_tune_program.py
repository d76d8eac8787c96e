"""Tuning of a program, with and without a model, and a run of the saved configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.files import read_json
from hlorank_collect import compiled_layouts
from hlorank_collect.autotune import tune_program
from hlorank_collect.autotune.apply import apply
from hlorank_collect.autotune.search import Speedup
from hlorank_collect.autotune.tuned import TuneTask, remeasure_tasks
from hlorank_collect.task import Progress, Task
from tests.hlorank_collect.tasks import silent


def test_without_a_model_candidates_are_measured_in_the_order_drawn(task: TuneTask) -> None:
    steps: list[Progress] = []
    about = tune_program.tune(task, steps.append)
    assert read_json(task.saved(about["name"])) == about
    assert about["candidates"] == 12
    assert [one["score"] for one in about["measured"]] == 4 * [None]
    assert about["rounds"] == 6
    found = Speedup(**about["speedup"])
    assert 0 < found.low <= found.estimate <= found.high < math.inf
    assert bool(about["configuration"]["instructions"]) == found.real
    assert [step.stage for step in steps] == ["trace", "rank", *5 * ["compile"], *6 * ["measure"]]
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_a_model_proposes_the_candidates(task: TuneTask, linear_model: Callable[..., Path]) -> None:
    model = linear_model()
    task = dataclasses.replace(task, model=str(model), reference="models:/layout.cpu.random/3", configurations=60)
    about = tune_program.tune(task, silent)
    assert about["model"] == "models:/layout.cpu.random/3"
    assert about["candidates"] == 60
    assert len({one["configuration"] for one in about["measured"]}) == 4
    assert all(math.isfinite(one["score"]) for one in about["measured"])


def test_a_configuration_wins_and_runs_again(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (2, Speedup(1.5, 1.4, 1.6)))
    about = tune_program.tune(task, silent)
    assert about["configuration"]["instructions"]
    assert about["winner"] in [one["configuration"] for one in about["measured"]]
    settings = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}
    (again_task,), broken = remeasure_tasks([task.saved(about["name"])], settings)
    assert not broken
    again = apply(again_task, silent)
    assert again["configuration"]["instructions"] or again["winner"] == "default"
    assert "times as fast" in again_task.summarize(again)
    assert not again_task.saved(about["name"]).exists()
    found = Speedup(**again["speedup"])
    assert 0 < found.low <= found.estimate <= found.high
    assert again["runtime_ns"].keys() == {"default", "tuned"}


def test_the_default_stays_where_nothing_is_faster(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (1, Speedup(1.1, 0.9, 1.2)))
    calls: list[Any] = []

    def difference(reference: Any, outputs: Any) -> str | None:
        calls.append(outputs)
        return "wrong" if len(calls) == 2 else None

    monkeypatch.setattr(compiled_layouts, "difference", difference)
    about = tune_program.tune(task, silent)
    assert (about["winner"], about["configuration"]["instructions"]) == ("default", [])
    assert about["speedup"]["estimate"] == 1.1
    assert list(about["left_out"].values()) == ["WrongOutputError: wrong"]
    assert len(about["measured"]) == 4


def test_where_no_candidate_works_the_default_stays(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_layouts, "difference", lambda reference, outputs: "wrong")
    about = tune_program.tune(task, silent)
    assert (about["speedup"], about["winner"], about["measured"]) == (None, "default", [])
    assert len(about["left_out"]) == 12
