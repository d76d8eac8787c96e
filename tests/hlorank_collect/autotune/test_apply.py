"""An exported configuration is measured next to the default, and saved as a tuned program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.files import DataError, read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import to_configuration
from hlorank.hlo.layout_space import Layouts, layout_space
from hlorank_collect.autotune import apply
from hlorank_collect.autotune.search import Speedup
from hlorank_collect.autotune.tuned import ApplyTask, Tuned, TuneTask
from hlorank_collect.compiled_layouts import captured
from tests.hlorank_collect.tasks import silent, small_task

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
    monkeypatch.setattr(apply, "speedup", lambda times, column, rng: found)
    module, _ = captured(task.load(), "cpu")
    layouts = exported(module, [0, 1])
    one = apply_task(task)
    searched = task.saved(task.load().name)
    write_json(searched, {"winner": "of a search"})
    about = apply.apply(one, silent)
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
    monkeypatch.setattr(apply, "speedup", lambda times, column, rng: Speedup(1.25, 1.1, 1.4))
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
    about = apply.apply(of_file, silent)
    np.testing.assert_array_equal(Tuned(of_file.saved(about["name"])).configuration, layouts)


def test_another_program_is_refused(task: TuneTask) -> None:
    exported(captured(task.load(), "cpu")[0], [0, 1])
    with pytest.raises(DataError, match="fingerprint"):
        apply.apply(apply_task(task, program="tuned_programs:changed"), silent)
    assert not Path("tuned").exists()


def test_a_configuration_that_compiles_to_the_default_is_nothing_to_measure(task: TuneTask) -> None:
    exported(captured(task.load(), "cpu")[0], [1, 0])  # the layout that the compiler chooses by itself
    about = apply.apply(apply_task(task), silent)
    assert (about["winner"], about["configuration"]["instructions"], about["measured"]) == ("default", [], [])
