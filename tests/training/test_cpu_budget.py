"""The bound of CPU time, on a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hlorank.training import cpu_budget as budget
from hlorank.training.cpu_budget import CpuBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU time of the process, which a test moves on."""
    seconds = [50.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(process_time=lambda: seconds[0]))
    return seconds


def trainer(graphs_per_step: int = 1) -> Any:
    return SimpleNamespace(should_stop=False, accumulate_grad_batches=graphs_per_step)


def test_time_counts_from_the_first_step_on(clock: list[float]) -> None:
    bound = CpuBudget(8.0)
    clock[0] += 100
    assert bound.share == 0
    bound.on_train_start(trainer())
    clock[0] += 2
    assert bound.share == 0.25


def test_without_a_budget_nothing_stops(clock: list[float]) -> None:
    bound, running = CpuBudget(None), trainer()
    bound.on_train_start(running)
    clock[0] += 1e9
    bound.on_train_batch_end(running, None, None, None, 0)
    bound.on_train_epoch_end(running)
    assert bound.share == 0
    assert not running.should_stop


def test_it_stops_between_steps_and_after_validation(clock: list[float]) -> None:
    bound, running = CpuBudget(3.0), trainer(graphs_per_step=2)
    bound.on_train_start(running)
    stops = []
    for batch in range(4):
        clock[0] += 1
        bound.on_train_batch_end(running, None, None, None, batch)
        stops.append(running.should_stop)
    assert stops == [False, False, False, True]  # used up by the third batch, the first one of a step

    validated = trainer()
    bound = CpuBudget(3.0)
    bound.on_train_start(validated)
    clock[0] += 2
    bound.on_train_batch_end(validated, None, None, None, 0)
    assert not validated.should_stop
    clock[0] += 1
    bound.on_train_epoch_end(validated)
    assert validated.should_stop


def test_a_stop_of_others_stays(clock: list[float]) -> None:
    stopped = trainer()
    stopped.should_stop = True
    CpuBudget(3.0).on_train_start(stopped)
    assert stopped.should_stop


def test_a_resumed_training_has_what_is_left(clock: list[float]) -> None:
    first = CpuBudget(8.0)
    first.on_train_start(trainer())
    clock[0] += 6
    state = first.state_dict()
    clock[0] = 3.0  # of another process
    resumed, running = CpuBudget(8.0), trainer()
    resumed.load_state_dict(state)
    assert resumed.share == 0.75
    resumed.on_train_start(running)
    clock[0] += 1
    assert resumed.share == 0.875
    assert resumed.state_dict() == {"spent": 7.0}
    assert not running.should_stop
    clock[0] += 1
    again = CpuBudget(8.0)
    again.load_state_dict(resumed.state_dict())
    again.on_train_start(running)
    assert running.should_stop
