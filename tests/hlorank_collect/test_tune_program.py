"""Tuning of a program, with and without a model; saved and exported configurations, measured and called."""

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
from tests.hlorank_collect.tasks import DOTS, silent, small_task

ABOUT = {"hlorank": "0.1.0", "model": "some model", "collection": "layout:cpu:random", "rank": 2, "score": -0.5}


@pytest.fixture
def task(programs: Path) -> TuneTask:
    """A task of tuning `dots` without a model."""
    return small_task(TuneTask, **DOTS, output="tuned", configurations=12, rounds=6, time_limit=300.0, budget=4)


def test_without_a_model_candidates_are_measured_in_the_order_drawn(task: TuneTask) -> None:
    steps: list[Progress] = []
    about = tune_program.tune(task, steps.append)
    assert read_json(task.saved(about["name"])) == about
    assert (about["candidates"], about["rounds"]) == (12, 6)
    assert [one["score"] for one in about["measured"]] == 4 * [None]
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
    assert (about["model"], about["candidates"]) == ("models:/layout.cpu.random/3", 60)
    assert len({one["configuration"] for one in about["measured"]}) == 4
    assert all(math.isfinite(one["score"]) for one in about["measured"])


@pytest.fixture
def saved(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a program whose second candidate won."""
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (2, Speedup(1.5, 1.4, 1.6)))
    about = tune_program.tune(dataclasses.replace(task, budget=2, rounds=4), silent)
    assert about["configuration"]["instructions"]
    assert about["winner"] in [one["configuration"] for one in about["measured"]]
    return task.saved(about["name"]).resolve()


def test_a_tuned_program_runs_again_and_is_called_like_the_function(saved: Path, task: TuneTask) -> None:
    import jax
    from user_programs import dots  # type: ignore[import-not-found] # written by the fixture

    settings = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}
    (again_task,), broken = remeasure_tasks([saved], settings)
    assert not broken
    before = saved.read_bytes()
    again = apply(again_task, silent)
    assert again["configuration"]["instructions"] or again["winner"] == "default"
    assert "times as fast" in again_task.summarize(again)
    assert [path.read_bytes() for path in saved.parent.iterdir()] == [before]  # nothing is written
    found = Speedup(**again["speedup"])
    assert 0 < found.low <= found.estimate <= found.high
    assert again["runtime_ns"].keys() == {"default", "tuned"}
    tuned = Tuned(saved)
    assert (tuned.configuration != -1).any()
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    expected, outputs = dots(x, w), tuned(x, w)
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"float32\[8,16\] float32\[16,8\].*float32\[8,15\]"):
        tuned(x[:, :15], w)
    with pytest.raises(ValueError, match="jit"):
        jax.jit(tuned)(x, w)


def test_a_file_that_is_damaged_or_of_another_program_is_refused(saved: Path) -> None:
    original = read_json(saved)
    chosen = original["configuration"]

    def edited(**changes: Any) -> Tuned:
        write_json(saved, original | changes)
        return Tuned(saved)

    default = edited(configuration=chosen | {"instructions": []})
    assert default(np.ones((8, 16), "f"), np.ones((16, 8), "f"))["sum"] == 128
    for match, changes in {
        "fingerprint of the module: .*user_programs:changed": {"program": "user_programs:changed"},
        f"{saved}: node 0, ": {"configuration": chosen | {"instructions": [chosen["instructions"][0] | {"node": 0}]}},
        "tune the program again": {"configuration": {"0": [-1] * 18}, "module": "0" * 64},  # an earlier version
        "seed": {"seed": None},
        "platform": {"platform": "tpu"},
        "configuration": {"configuration": []},
    }.items():
        with pytest.raises(DataError, match=match):
            edited(**changes)


@pytest.mark.parametrize("wrong", [1, 12])
def test_the_default_stays_where_nothing_is_faster_or_no_candidate_works(
    wrong: int, task: TuneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (1, Speedup(1.1, 0.9, 1.2)))
    answers = iter(["wrong"] * wrong)
    monkeypatch.setattr(compiled_layouts, "difference", lambda reference, outputs: next(answers, None))
    about = tune_program.tune(task, silent)
    assert (about["winner"], about["configuration"]["instructions"]) == ("default", [])
    assert [*about["left_out"].values()] == ["WrongOutputError: wrong"] * wrong
    assert len(about["measured"]) == (4 if wrong == 1 else 0)
    assert (about["speedup"] is None) == (wrong == 12)


def exported(module: HloModuleProto, order: list[int]) -> Layouts:
    """Write a configuration of the first node's output to own.json, and return it."""
    layouts = layout_space(module).default
    layouts[0, :2] = order
    write_json(Path("own.json"), to_configuration(module, layouts, ABOUT).model_dump(mode="json"))
    return layouts


def apply_task(**changes: Any) -> ApplyTask:
    fixed: dict[str, Any] = {"output": "tuned", "rounds": 6, "time_limit": 300.0, "applied": "own.json"}
    return small_task(ApplyTask, **{**DOTS, **fixed, **changes})


@pytest.mark.parametrize("real", [True, False])
def test_the_result_is_that_of_a_tuned_program(task: TuneTask, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Speedup(1.25, 1.1, 1.4) if real else Speedup(0.8, 0.7, 0.9)
    monkeypatch.setattr(tune_program, "speedup", lambda times, column, rng: found)
    layouts = exported(captured(task.load(), "cpu")[0], [0, 1])
    one = apply_task()
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
    of_file = apply_task(program="own.hlo.pb", arguments=None)
    about = apply(of_file, silent)
    np.testing.assert_array_equal(Tuned(of_file.saved(about["name"])).configuration, layouts)


def test_another_program_is_refused_and_the_same_as_the_default_is_not_measured(task: TuneTask) -> None:
    exported(captured(task.load(), "cpu")[0], [1, 0])  # the layout that the compiler chooses by itself
    with pytest.raises(DataError, match="fingerprint"):
        apply(apply_task(program="user_programs:changed"), silent)
    assert not Path("tuned").exists()
    about = apply(apply_task(), silent)
    assert (about["winner"], about["configuration"]["instructions"], about["measured"]) == ("default", [], [])
