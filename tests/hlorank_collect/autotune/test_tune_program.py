"""Tuning of a program, with and without a model, and measuring of a saved or exported configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.files import DataError, read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import to_configuration
from hlorank.hlo.layout_space import Layouts, layout_space
from hlorank_collect import compiled_layouts
from hlorank_collect.autotune import tune_program
from hlorank_collect.autotune.search import Speedup
from hlorank_collect.autotune.tune_program import apply
from hlorank_collect.autotune.tuned import ApplyTask, Tuned, TuneTask, remeasure_tasks
from hlorank_collect.compiled_layouts import captured
from hlorank_collect.task import Progress, Task
from tests.hlorank_collect.tasks import silent, small_task


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


ABOUT = {"hlorank": "0.1.0", "model": "some model", "collection": "layout:cpu:random", "rank": 2, "score": -0.5}


def exported(module: HloModuleProto, order: list[int]) -> Layouts:
    """Write a configuration of the first node's output to own.json, and return it."""
    layouts = layout_space(module).default
    layouts[0, :2] = order
    write_json(Path("own.json"), to_configuration(module, layouts, ABOUT).model_dump(mode="json"))
    return layouts


def apply_task(task: TuneTask, **changes: Any) -> ApplyTask:
    fields = {"program": task.program, "arguments": task.arguments, "collection": task.collection}
    return small_task(
        ApplyTask, **{**fields, "output": "tuned", "rounds": 6, "time_limit": 300.0, "applied": "own.json", **changes}
    )


@pytest.mark.parametrize("real", [True, False])
def test_the_result_is_that_of_a_tuned_program(task: TuneTask, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Speedup(1.25, 1.1, 1.4) if real else Speedup(0.8, 0.7, 0.9)
    monkeypatch.setattr(tune_program, "speedup", lambda times, column, rng: found)
    module, _ = captured(task.load(), "cpu")
    layouts = exported(module, [0, 1])
    one = apply_task(task)
    searched = task.saved(task.load().name)
    write_json(searched, {"winner": "of a search"})
    about = apply(one, silent)
    assert read_json(searched) == {"winner": "of a search"}
    assert about == read_json(one.saved(about["name"]))
    assert (about["model"], about["applied"], about["rounds"]) == ("some model", "own.json", 6)
    assert (about["winner"] == "default", bool(about["configuration"]["instructions"])) == (not real, real)
    (measured,) = about["measured"]
    assert (measured["score"], measured["relative_runtime"]) == (-0.5, 1 / found.estimate)
    assert ("keeps the default" in one.summarize(about)) != real
    tuned = Tuned(one.saved(about["name"]))
    np.testing.assert_array_equal(tuned.configuration, layouts if real else np.full_like(layouts, -1))


@pytest.mark.parametrize("changed", ["nodes", "names"])
def test_a_file_right_before_layout_assignment_is_taken_as_it_is(
    changed: str, task: TuneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_program, "speedup", lambda times, column, rng: Speedup(1.25, 1.1, 1.4))
    module, _ = captured(task.load(), "cpu")
    (entry,) = (one for one in module.computations if one.id == module.entry_computation_id)
    if changed == "nodes":  # the passes remove an unused one
        unused = entry.instructions.add()
        unused.CopyFrom(next(one for one in entry.instructions if one.opcode == "constant"))
        unused.id, unused.name = max(one.id for one in entry.instructions) + 1, "unused"
    else:  # the compiler numbers again
        for one in entry.instructions:
            one.name = f"{one.opcode}.{one.id % 2**16 + 500}"
    Path("own.hlo.pb").write_bytes(module.SerializeToString())
    layouts = exported(module, [0, 1])
    of_file = apply_task(task, program="own.hlo.pb", arguments=None)
    about = apply(of_file, silent)
    np.testing.assert_array_equal(Tuned(of_file.saved(about["name"])).configuration, layouts)


def test_another_program_is_refused_and_the_same_as_the_default_is_not_measured(task: TuneTask) -> None:
    exported(captured(task.load(), "cpu")[0], [1, 0])  # the layout that the compiler chooses by itself
    with pytest.raises(DataError, match="fingerprint"):
        apply(apply_task(task, program="user_programs:changed"), silent)
    assert not Path("tuned").exists()
    about = apply(apply_task(task), silent)
    assert (about["winner"], about["configuration"]["instructions"], about["measured"]) == ("default", [], [])
