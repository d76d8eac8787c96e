"""A program is tuned, with a model or without, and what is saved runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.config import Config
from hlorank.files import DataError, read_json
from hlorank.models.baselines.baseline import BASELINES
from hlorank.training.baselines.train_baseline import train_baseline
from hlorank.training.trainer import train
from hlorank_collect.autotune import tune_program as child
from hlorank_collect.autotune.autotune_task import AgainTask, TuneTask
from hlorank_collect.autotune.remeasure import run_again
from hlorank_collect.autotune.significance import Speedup
from hlorank_collect.layouts.compiled_layouts import SkippedError
from hlorank_collect.task import Progress


def silent(progress: Progress) -> None:
    pass


def test_without_a_model_candidates_are_measured_in_the_order_drawn(task: TuneTask) -> None:
    steps: list[Progress] = []
    about = child.tune(task, steps.append)
    assert read_json(task.saved(about["name"])) == about
    assert about["candidates"] == 12
    assert [one["score"] for one in about["measured"]] == [1.0, 2.0, 3.0, 4.0]
    assert about["rounds"] == 6
    found = Speedup(**about["speedup"])
    assert 0 < found.low <= found.estimate <= found.high < math.inf
    assert bool(about["configuration"]) == found.real
    assert [step.stage for step in steps] == ["trace", "rank", *5 * ["compile"], *6 * ["measure"]]
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] <= 1


@pytest.mark.parametrize(
    ("method", "search"),
    [("gst", "random"), ("gst", "default"), ("gradient_boosting", "default")],
)
def test_a_model_ranks_the_candidates(
    method: str, search: str, task: TuneTask, settings: Callable[..., Config], tmp_path: Path
) -> None:
    (train_baseline if method in BASELINES else train)(settings(method=method), tmp_path / "model")
    task = dataclasses.replace(
        task,
        model=str(tmp_path / "model"),
        reference="models:/layout.cpu.random/3",
        collection=f"layout:cpu:{search}",
        batch=4,
        budget=4,
    )
    about = child.tune(task, silent)
    assert about["model"] == "models:/layout.cpu.random/3"
    scores = [one["score"] for one in about["measured"]]
    assert scores == sorted(scores)
    again = child.tune(task, silent)
    assert [one["configuration"] for one in again["measured"]] == [one["configuration"] for one in about["measured"]]


def test_a_configuration_wins_and_runs_again(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "winner", lambda times, rng: (2, Speedup(1.5, 1.4, 1.6)))
    about = child.tune(task, silent)
    assert about["configuration"]
    assert about["winner"] in [one["configuration"] for one in about["measured"]]
    settings = {
        field.name: getattr(task, field.name) for field in dataclasses.fields(AgainTask) if field.name != "saved"
    }
    again = run_again(AgainTask(**settings, saved=str(task.saved(about["name"]))), silent)
    assert again["tuned"]
    found = Speedup(**again["speedup"])
    assert 0 < found.low <= found.estimate <= found.high
    assert again["runtime_ns"].keys() == {"default", "tuned"}


def test_the_default_stays_where_nothing_is_faster(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "winner", lambda times, rng: (1, Speedup(1.1, 0.9, 1.2)))
    about = child.tune(task, silent)
    assert (about["winner"], about["configuration"]) == ("default", {})
    assert about["speedup"]["estimate"] == 1.1


def test_candidates_that_compute_something_else_are_left_out(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    from hlorank_collect.layouts import compiled_layouts as candidates

    calls: list[Any] = []

    def difference(reference: Any, outputs: Any) -> str | None:
        calls.append(outputs)
        return "wrong" if len(calls) == 2 else None

    monkeypatch.setattr(candidates, "difference", difference)
    about = child.tune(task, silent)
    assert list(about["left_out"].values()) == ["WrongOutputError: wrong"]
    assert len(about["measured"]) == 4


def test_where_no_candidate_works_the_default_stays(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    from hlorank_collect.layouts import compiled_layouts as candidates

    monkeypatch.setattr(candidates, "difference", lambda reference, outputs: "wrong")
    about = child.tune(task, silent)
    assert (about["speedup"], about["configuration"], about["measured"]) == (None, {}, [])
    assert len(about["left_out"]) == 12


def test_no_candidate_is_begun_when_time_is_up(task: TuneTask) -> None:
    about = child.tune(dataclasses.replace(task, time_limit=1e-9), silent)
    assert (about["speedup"], about["measured"]) == (None, [])


def test_a_program_without_layouts_is_skipped(task: TuneTask) -> None:
    with pytest.raises(SkippedError, match="expected a node to configure"):
        child.tune(dataclasses.replace(task, program="tuned_programs:nothing"), silent)


def test_a_model_that_is_none_is_named(task: TuneTask, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"spec\.json"):
        child.tune(dataclasses.replace(task, model=str(tmp_path / "nothing")), silent)


def test_a_model_of_tiles_is_refused(task: TuneTask, settings: Callable[..., Config], tmp_path: Path) -> None:
    train_baseline(settings(method="gradient_boosting", collection="tile/synthetic"), tmp_path / "model")
    with pytest.raises(DataError, match="expected configurations of tile:synthetic"):
        child.tune(dataclasses.replace(task, model=str(tmp_path / "model")), silent)


def test_the_pool_holds_no_default(task: TuneTask) -> None:
    from hlorank_collect.layouts.capture import captured, configurable

    module, _ = captured(task.load(), "cpu")
    space = configurable(module)
    pool = child.Pool(module, space, task, np.random.default_rng(0))
    assert len(pool.rows) == 12
    assert (pool.rows != space.default).any(axis=(1, 2)).all()


def test_the_final_has_rounds_enough_for_an_interval_when_time_is_up(
    task: TuneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_PROPOSE_SHARE", 1e9)  # candidates are tried all the same
    about = child.tune(dataclasses.replace(task, rounds=30, time_limit=1e-6), silent)
    assert (len(about["measured"]), about["rounds"]) == (4, 10)
