"""Tuning: candidates, what is faster beyond noise, and saved and exported configurations, measured and called."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.graph import Graph
from hlorank.files import DataError, read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import to_configuration
from hlorank.hlo.layout_space import Layouts, LayoutSpace, layout_space
from hlorank.hlo.node_features import COLUMNS, DIMENSIONS, SHAPE
from hlorank_collect import compiled_layouts
from hlorank_collect.autotune import tune_program
from hlorank_collect.autotune.acquisition import NodeEffects, node_kinds
from hlorank_collect.autotune.evolution import Evolution
from hlorank_collect.autotune.search import RandomCandidates, Speedup, propose, speedup, winner
from hlorank_collect.autotune.tune_program import apply
from hlorank_collect.autotune.tuned import ApplyTask, Tuned, TuneTask
from hlorank_collect.child_process import supervise
from hlorank_collect.compiled_layouts import captured
from hlorank_collect.run_tasks import in_threads
from hlorank_collect.task import Progress, Task
from tests.hlorank_collect.tasks import DOTS, silent, small_task

ABOUT: dict[str, Any] = {"hlorank": "0.1.0", "model": "some model", "collection": "layout:cpu:random"}
ABOUT |= {"backend": "cpu", "rank": 2, "score": -0.5}


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


def test_what_was_tuned_is_kept_unless_the_settings_or_the_program_changed(task: TuneTask, programs: Path) -> None:
    def tuned(**changes: Any) -> tuple[bool, list[str]]:
        steps: list[Progress] = []
        one = dataclasses.replace(task, **changes)
        return one.summarize(tune_program.tune(one, steps.append)).startswith("tuned"), [step.stage for step in steps]

    assert tuned()[0] is False
    before = task.saved(task.load().name).read_bytes()
    assert tuned() == tuned(time_limit=200.0) == (True, ["trace"])
    assert task.saved(task.load().name).read_bytes() == before
    assert tuned(budget=2)[0] is False
    assert tuned(budget=2)[0] is True
    own = programs / "user_programs.py"
    own.write_text(own.read_text().replace("x.sum()", "2 * x.sum()"))
    del sys.modules["user_programs"]
    assert tuned(budget=2)[0] is False
    module, by_model = captured(task.load(), "cpu")[0], dataclasses.replace(task, model=str(programs))
    prints = {task.identity(module)}
    for weights in "ab":
        write_json(programs / "spec.json", {"weights_sha256": weights})
        prints.add(by_model.identity(module))
    assert len(prints) == 3


def test_a_model_proposes_the_candidates(task: TuneTask, linear_model: Callable[..., Path]) -> None:
    model = linear_model()
    task = dataclasses.replace(task, model=str(model), reference="models:/layout.cpu.random/3", configurations=60)
    # A child of a thread, as for a TPU, has a process of its own for the model, too.
    ((about, reason),) = map(astuple, in_threads(partial(supervise, hang_seconds=300), [task]))
    assert about, reason
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

    own = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}
    before = saved.read_bytes()
    measured = apply(ApplyTask(**own, applied=str(saved)), silent)  # in the place of a search
    assert saved.read_bytes() == before
    found = Speedup(**measured["speedup"])
    assert 0 < found.low <= found.estimate <= found.high
    assert measured["runtime_ns"].keys() == {"default", "tuned"}
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
        "platform": {"platform": "npu"},
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


def layouts(*changes: dict[int, int], nodes: int = 4) -> Any:
    """Return configurations from changes: node -> 0 (row-major output) or 1 (column-major output)."""
    result = np.full((len(changes), nodes, 18), -1, dtype=np.int8)
    for one, change in enumerate(changes):
        for node, order in change.items():
            result[one, node, :2] = [order, 1 - order]
    return result


def test_nodes_of_a_kind_are_equal_and_have_operands_of_equal_shapes() -> None:
    feat = np.zeros((8, 140), dtype=np.float32)
    feat[0:3, COLUMNS["parameter_number"].start] = [0, 1, 2]
    feat[2, SHAPE.start] = 5
    feat[7, DIMENSIONS.start] = 1
    opcode = np.array([1, 1, 1, 2, 7, 7, 7, 7], dtype=np.uint8)
    edges = np.array([[4, 0], [5, 1], [6, 2], [7, 0]])
    graph = Graph(feat, opcode, edges, np.array([0, 8]))
    assert node_kinds(graph, np.array([4, 5, 6, 7])).tolist() == [0, 0, 1, 2]


def test_a_measurement_tells_about_nodes_of_the_kind_and_about_no_other() -> None:
    some = layouts({}, {0: 1}, {1: 1}, {1: 0}, {2: 1}, {0: 1, 2: 1})
    process = NodeEffects(some, np.array([0, 0, 1, 2]), np.array([0.0, 1.0, 1.0, 1.0, 1.0, 2.0]))
    before, _ = process.posterior({})
    after, deviation = process.posterior({1: 0.5})
    assert after[1] == pytest.approx(0.5, abs=0.05)
    assert after[2] == pytest.approx(after[1])  # the same layouts of an equal node
    assert before[3] < after[3] < after[2]  # other layouts of an equal node
    assert after[4] - before[4] < 0.1 * (after[2] - before[2])  # another kind, by the slope alone
    assert after[5] - before[5] > 0.9 * (after[1] - before[1])
    assert deviation[1] < deviation[3] < deviation[4] < deviation[5]


def test_effects_of_several_nodes_are_attributed() -> None:
    some = layouts({}, {0: 1}, {1: 1}, {2: 1}, {0: 1, 1: 1}, {1: 1, 2: 1}, {0: 1, 2: 1})
    truth = np.array([0.0, -0.1, 0.3, 0.02])
    logs = [sum(truth[1 + node] for node in np.flatnonzero((one != -1).any(axis=1)).tolist()) for one in some]
    process = NodeEffects(some, np.arange(4), np.array([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    mean, _ = process.posterior({one: logs[one] for one in (4, 5, 6)})
    assert int(np.argmin(mean)) == 1
    np.testing.assert_allclose(mean[1:4], truth[1:], atol=0.05)


@given(seed=st.integers(0, 1000), known=st.integers(0, 8))
@settings(deadline=None, max_examples=20)
def test_batches_have_no_repetition_and_end_with_the_configurations(seed: int, known: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [{node: int(rng.integers(2)) for node in range(4) if rng.random() < 0.5} for _ in range(9)]
    scores = np.concatenate([[0.0], rng.normal(size=9)])
    process = NodeEffects(layouts({}, *drawn), rng.integers(2, size=4), scores)
    measured = {1 + one: float(rng.normal()) for one in range(known)}
    chosen = process.batch(measured, {0, *measured}, 20)
    assert sorted(chosen) == sorted(set(range(1, 10)) - set(measured))
    assert all(math.isfinite(value) for value in process.improvement(measured, 0.0))


SPACE = LayoutSpace(np.arange(12) * 3, np.tile([2, 2, 0], (12, 1)))
KINDS = np.repeat([0, 1, 2], 4)


def score(layouts: Any) -> Any:
    """Each node of kind 0 whose output is column-major is faster by 1; any other change is slower by 0.5."""
    good = (layouts[:, :, :2] == [0, 1]).all(axis=2) & (KINDS == 0)
    changed = (layouts != -1).reshape(*layouts.shape[:2], 3, 6).any(axis=3).sum(axis=(1, 2))
    return 7 + 0.5 * (changed - good.sum(axis=1)) - good.sum(axis=1)


def evolution(size: int = 120, kinds: Any = KINDS) -> Evolution:
    return Evolution(SPACE, kinds, score, size=size, batches=2, rng=np.random.default_rng(0))


def test_the_population_grows_to_its_size_without_repetition_and_nothing_is_chosen_twice() -> None:
    some = evolution()
    first = some.choose({}, set(), 4).tolist()
    second = some.choose(dict.fromkeys(first[1:], 0.1), set(first), 4).tolist()
    assert not set(first) & set(second)
    some.choose({}, set(), 2)
    assert len(some.layouts) == len({one.tobytes() for one in some.layouts}) == 120
    for one in some.layouts:
        SPACE.check(one)


def test_equal_nodes_change_together() -> None:
    best = []
    for kinds in (KINDS, np.arange(12)):
        some = evolution(size=200, kinds=kinds)
        some.choose({}, set(), 1)
        best.append(score(some.layouts).min())
    assert best[0] == 7 - 4  # all four nodes of the kind, and nothing else
    assert best[0] < best[1]


def test_a_small_space_is_exhausted() -> None:
    space = LayoutSpace(np.array([0]), np.array([[2, 0, 0]]))
    some = Evolution(space, np.array([0]), lambda x: np.zeros(len(x)), size=50, batches=1, rng=np.random.default_rng(0))
    assert sorted(some.choose({}, set(), 10).tolist()) == [1, 2]
    assert some.choose({1: 0.0, 2: 0.1}, {1, 2}, 10).tolist() == []
    assert some.scores.tolist() == pytest.approx([0, 0, 0])


def searched(count: int, failing: tuple[int, ...] = (), **settings: Any) -> tuple[dict[int, float], list[Any]]:
    """Search among candidates 1 to `count`, each 1 slower than the one before; return the tried, and what was asked."""
    candidates = RandomCandidates.__new__(RandomCandidates)
    candidates.layouts = np.zeros((count + 1, 1, 18), np.int8)
    asked: list[Any] = []

    def choose(measured: Mapping[int, float], excluded: set[int], number: int) -> Any:
        chosen = candidates.choose(measured, excluded, number)
        asked.append((dict(measured), chosen.tolist()))
        return chosen

    def measure(chosen: Any) -> Any:
        return np.where(np.isin(chosen, failing), math.inf, 1.0 + chosen)

    return propose(choose, measure, **settings), asked


def test_batches_know_what_was_measured_and_what_fails_costs_no_budget() -> None:
    tried, asked = searched(20, budget=7)
    assert tried == {one: 1.0 + one for one in range(1, 8)}
    assert [chosen for _, chosen in asked] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [measured for measured, _ in asked][:2] == [{}, {1: math.log(2), 2: math.log(3), 3: math.log(4)}]
    tried, asked = searched(9, (1, 3), budget=3)
    assert list(tried) == [1, 2, 3, 4, 5]
    assert [set(measured) for measured, _ in asked] == [set(), set(), {2}, {2}, {2, 4}]
    assert searched(9, budget=3, deadline=0.0) == ({}, [])


def times(relative: list[float], noise: float, rounds: int = 40, seed: int = 0) -> Any:
    """Return times with a random level per round."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 1.0, (rounds, 1)))
    return 1e6 * level * np.array(relative) * np.exp(rng.normal(0, noise, (rounds, len(relative))))


def test_the_speedup_is_exact_without_noise_and_else_its_interval_holds_the_truth() -> None:
    column, found = winner(times([1.0, 0.8, 0.5, 2.0], 0.0), np.random.default_rng(0))
    assert column == 2
    assert (found.estimate, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.real
    few, many = (speedup(times([1.0, 0.9], 0.05, rounds), 1, np.random.default_rng(0)) for rounds in (20, 400))
    for found in (few, many):
        assert found.low < 1 / 0.9 < found.high
        assert found.low < found.estimate < found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_the_best_of_many_equal_ones_does_not_win() -> None:
    wins = [winner(times([1.0] * 31, 0.05, seed=seed), np.random.default_rng(0))[1].real for seed in range(40)]
    # 2.5 % are expected to be wrong at random; if the same rounds chose and judged, nearly all would be.
    assert sum(wins) <= 4
