"""Searches: trials that are tried, resumed and refused; and trials in the process of their training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from hlorank.config import Config, ConfigError, SweepConfig
from hlorank.config.section import parse
from hlorank.runs.search import Search, SearchSettings, SearchTrial, Space, current_trial, open_study
from hlorank.runs.store import PARENT_VARIABLE, Pruned

SPACE: Space = {"x": FloatDistribution(-2, 2), "kind": CategoricalDistribution(["a", "b"])}


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    storage = f"sqlite:///{tmp_path}/new/searches.db"
    return SweepConfig(name="s", storage=storage, trial=None, prune=False, prune_after_trials=1, prune_after_epochs=1)


def search(study: optuna.Study, space: Space | None = None, **settings: Any) -> Search:
    values = {"sampler": "tpe", "seed": 0, "n_trials": 6, "n_jobs": 1, **settings}
    return Search(study, SearchSettings.model_validate(values), ["y=1"], SPACE if space is None else space)


def value(job: list[str]) -> float:
    named = dict(override.split("=") for override in job)
    return -((float(named["x"]) - 0.5) ** 2) - (named["kind"] == "b")


class Launcher:
    """Launcher that runs jobs, stores them, and dies in the batch of a number."""

    def __init__(self, dies: int = -1) -> None:
        self.batches: list[list[list[str]]] = []
        self.dies = dies

    def __call__(self, jobs: list[list[str]]) -> list[float]:
        self.batches.append(jobs)
        if len(self.batches) == self.dies:
            raise KeyboardInterrupt
        return [value(job) for job in jobs]

    @property
    def jobs(self) -> list[list[str]]:
        return [job for batch in self.batches for job in batch]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_equal_seeds_try_equal_values(sampler: str, config: SweepConfig) -> None:
    tried = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        launcher = Launcher()
        search(open_study(config.model_copy(update={"name": name}), "p", create=True), sampler=sampler, seed=seed).run(
            launcher
        )
        tried.append(launcher.jobs)
    assert tried[0] == tried[1] != tried[2]
    assert [job[0] for job in tried[0]] == ["y=1"] * 6
    assert [job[-1] for job in tried[0]] == [f"sweep.trial={number}" for number in range(6)]
    assert len({job[1] for job in tried[0]}) == 6


@pytest.mark.parametrize("dies", [1, 3])
def test_an_interrupted_search_tries_the_same_values(dies: int, config: SweepConfig) -> None:
    whole, first, second = Launcher(), Launcher(dies), Launcher()
    search(open_study(config.model_copy(update={"name": "whole"}), "p", create=True), n_trials=6, n_jobs=2).run(whole)
    with pytest.raises(KeyboardInterrupt):
        search(open_study(config, "p", create=True), n_trials=6, n_jobs=2).run(first)
    search(open_study(config, "p", create=True), n_trials=6, n_jobs=2).run(second)
    assert first.batches[:-1] + second.batches == whole.batches
    study = open_study(config, "p", create=False)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6
    assert study.best_value == max(map(value, whole.jobs))
    launcher = Launcher()
    search(study, n_trials=6).run(launcher)
    assert launcher.jobs == []  # there is nothing left to do


def test_tpe_prefers_large_values(config: SweepConfig) -> None:
    launcher = Launcher()
    search(open_study(config, "p", create=True), n_trials=24).run(launcher)
    late = [value(job) for job in launcher.jobs[14:]]
    assert sum(late) / 10 > sum(map(value, launcher.jobs[:10])) / 10 + 0.5


def test_batches(config: SweepConfig) -> None:
    launcher = Launcher()
    search(open_study(config, "p", create=True), n_trials=5, n_jobs=2).run(launcher)
    assert [len(batch) for batch in launcher.batches] == [2, 2, 1]


def test_failed_trials_are_replaced(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    search(study, n_trials=3).run(lambda jobs: [None if jobs[0][-1].endswith("=1") else 0.5])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    launcher = Launcher()
    search(open_study(config, "p", create=True), n_trials=3).run(launcher)
    assert launcher.jobs == []


def test_a_search_ends_when_all_trials_fail_and_tries_again_when_resumed(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    search(study, n_trials=3, n_jobs=2).run(lambda jobs: [None] * len(jobs))
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4  # in whole batches
    search(open_study(config, "p", create=True), n_trials=3).run(Launcher())
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4 + ["COMPLETE"] * 3


def test_a_value_that_is_no_number_is_a_failure(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    search(study, n_trials=2).run(lambda jobs: [math.nan if jobs[0][-1].endswith("=0") else 0.5])
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]


def test_no_trial_stays_unfinished(config: SweepConfig) -> None:
    """A resumed search with a smaller n_trials runs only so many of the interrupted trials."""
    study = open_study(config, "p", create=True)
    with pytest.raises(KeyboardInterrupt):
        search(study, n_trials=3, n_jobs=3).run(Launcher(1))
    assert [trial.state.name for trial in study.trials] == ["RUNNING"] * 3
    search(open_study(config, "p", create=True), n_trials=1).run(Launcher())
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "FAIL"]


def test_a_trial_without_all_of_its_values_fails(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    study.ask().suggest_float("x", -2, 2)
    launcher = Launcher()
    search(study, n_trials=1).run(launcher)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


def test_another_space_needs_another_name(config: SweepConfig) -> None:
    search(open_study(config, "p", create=True))
    search(open_study(config, "p", create=True), space=dict(SPACE))
    with pytest.raises(ConfigError, match=r"^sweep\.name=s: .*\bx, z\b"):
        search(open_study(config, "p", create=True), space=SPACE | {"x": FloatDistribution(0, 1), "z": SPACE["x"]})


@pytest.mark.parametrize(("key", "wrong"), [("sampler", "grid"), ("n_trials", 0), ("n_jobs", 0), ("seed", -1)])
def test_wrong_settings_are_named(key: str, wrong: Any) -> None:
    values = {"sampler": "tpe", "seed": 0, "n_trials": 6, "n_jobs": 1, key: wrong}
    with pytest.raises(ConfigError, match=rf"^hydra\.sweeper\.{key}={wrong}: "):
        parse(SearchSettings, values, prefix="hydra.sweeper")


def test_an_empty_space_is_refused(config: SweepConfig) -> None:
    with pytest.raises(ConfigError, match="nothing to search"):
        search(open_study(config, "p", create=True), space={})


def test_a_store_that_can_not_be_opened(config: SweepConfig) -> None:
    with pytest.raises(ConfigError, match=r"^sweep\.storage=nonsense: "):
        open_study(config.model_copy(update={"storage": "nonsense"}), "p", create=True)


def test_a_study_without_a_name_is_named_after_its_run(config: SweepConfig) -> None:
    assert open_study(config.model_copy(update={"name": None}), "parent", create=True).study_name == "parent"


def run_trial(config: SweepConfig, taus: list[float]) -> TrialState:
    """Run a trial whose training reports through a study that it opens itself, and return its state."""
    study = open_study(config, "p", create=True)
    number = study.ask({"x": SPACE["x"]}).number
    trial = SearchTrial(open_study(config, "p", create=False), number)
    try:
        for step, tau in enumerate(taus, start=1):
            trial.report(tau, step)
            trial.raise_if_pruned()
    except Pruned:
        return study.trials[number].state
    study.tell(number, max(taus))
    return study.trials[number].state


def test_poor_trials_are_pruned(config: SweepConfig) -> None:
    config = config.model_copy(update={"prune": True})
    assert run_trial(config, [0.5, 0.6, 0.7]) is TrialState.COMPLETE
    assert run_trial(config, [0.6, 0.7, 0.8]) is TrialState.COMPLETE
    assert run_trial(config, [0.1, 0.2, 0.3]) is TrialState.PRUNED
    study = open_study(config, "p", create=False)
    assert study.trials[2].intermediate_values == {1: 0.1}
    assert run_trial(config.model_copy(update={"prune": False}), [0.1, 0.2, 0.3]) is TrialState.COMPLETE
    assert run_trial(config.model_copy(update={"prune_after_epochs": 3}), [0.1, 0.2, 0.3]) is TrialState.PRUNED
    assert sorted(study.trials[4].intermediate_values) == [1, 2, 3]
    assert run_trial(config.model_copy(update={"prune_after_trials": 9}), [0.1, 0.1]) is TrialState.COMPLETE


def test_a_resumed_training_may_report_an_epoch_again(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    number = study.ask(SPACE).number
    SearchTrial(study, number).report(0.25, 1)
    again = SearchTrial(study, number)
    again.report(0.5, 1)  # Optuna warns of it, and warnings are errors here
    again.report(math.pi, 2)
    assert study.trials[number].intermediate_values == {1: 0.25, 2: math.pi}


def test_the_trial_of_a_process(settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(sweep__trial=0, sweep__name="s")
    assert current_trial(config.sweep) is None
    monkeypatch.setenv(PARENT_VARIABLE, "p")
    assert current_trial(settings().sweep) is None
    open_study(config.sweep, "p", create=True).ask(SPACE)
    trial = current_trial(config.sweep)
    assert trial is not None
    trial.report(0.5, 1)
    assert open_study(config.sweep, "p", create=False).trials[0].intermediate_values == {1: 0.5}
