"""Searches: their spaces, trials that are tried, resumed and refused, and trials in the process of their training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from hlorank.config import Config, ConfigError, SweepConfig
from hlorank.config.section import parse
from hlorank.runs.search import (
    Search,
    SearchSettings,
    SearchTrial,
    Space,
    current_trial,
    open_study,
    split,
)
from hlorank.runs.store import PARENT_VARIABLE, Pruned

SPACE: Space = {"x": FloatDistribution(-2, 2), "kind": CategoricalDistribution(["a", "b"])}


def parsed(*overrides: str) -> tuple[list[str], dict[str, object]]:
    fixed, space = split(OverridesParser.create().parse_overrides(list(overrides)))
    return fixed, dict(space)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("interval(0.1, 0.5)", FloatDistribution(0.1, 0.5)),
        ("interval(1, 8)", FloatDistribution(1, 8)),
        ("int(interval(1, 8))", IntDistribution(1, 8)),
        ("tag(log, interval(1e-4, 1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("tag(log, int(interval(1, 64)))", IntDistribution(1, 64, log=True)),
        ("range(1, 5)", IntDistribution(1, 4)),
        ("range(1, 6, 2)", IntDistribution(1, 5, step=2)),
        ("range(8, 0, -2)", IntDistribution(2, 8, step=2)),
        ("range(0.0, 1.0, 0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("a,b", CategoricalDistribution(["a", "b"])),
        ("choice([a, b], [c])", CategoricalDistribution(["[a,b]", "[c]"])),
        ("'x,y',z", CategoricalDistribution(["'x,y'", "z"])),
    ],
)
def test_each_form_of_a_space(written: str, expected: object) -> None:
    assert parsed(f"key={written}") == ([], {"key": expected})


def test_fixed_values_and_the_last_of_a_key() -> None:
    fixed, space = parsed("a=range(1,4)", "b=1,2", "b=7", "c=x", "c='p q'", "d=[1,2]", "+e=1")
    assert fixed == ["b=7", "c='p q'", "d=[1,2]", "+e=1"]
    assert list(space) == ["a"]


@pytest.mark.parametrize(
    "override",
    [
        "k=range(4, 1)",
        "k=tag(log, range(0.5, 2.0, 0.5))",
        "k=tag(log, interval(0, 1))",
        "k=interval(2, 1)",
        "k=tag(lin, interval(0, 1))",
    ],
)
def test_wrong_spaces_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^k[=:]"):
        parsed(override)


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


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_equal_seeds_try_equal_values(sampler: str, config: SweepConfig) -> None:
    tried = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        study, launcher = open_study(config.model_copy(update={"name": name}), "p", create=True), Launcher()
        search(study, sampler=sampler, seed=seed, n_trials=5, n_jobs=2).run(launcher)
        assert [len(batch) for batch in launcher.batches] == [2, 2, 1]
        tried.append(launcher.jobs)
    assert tried[0] == tried[1] != tried[2]
    assert [job[0] for job in tried[0]] == ["y=1"] * 5
    assert [job[-1] for job in tried[0]] == [f"sweep.trial={number}" for number in range(5)]
    assert len({job[1] for job in tried[0]}) == 5


@pytest.mark.parametrize("dies", [1, 3])
def test_an_interrupted_search_tries_the_same_values(dies: int, config: SweepConfig) -> None:
    whole, first, second = Launcher(), Launcher(dies), Launcher()
    search(open_study(config.model_copy(update={"name": "whole"}), "p", create=True), n_trials=6, n_jobs=2).run(whole)
    with pytest.raises(KeyboardInterrupt):
        search(open_study(config, "p", create=True), n_trials=6, n_jobs=2).run(first)
    search(open_study(config, "p", create=True), n_trials=6, n_jobs=2).run(second)
    assert first.batches[:-1] + second.batches == whole.batches
    study = open_study(config, "p", create=False)
    assert states(study) == ["COMPLETE"] * 6
    assert study.best_value == max(map(value, whole.jobs))
    launcher = Launcher()
    search(study, n_trials=6).run(launcher)
    assert launcher.jobs == []  # there is nothing left to do


def test_tpe_prefers_large_values(config: SweepConfig) -> None:
    launcher = Launcher()
    search(open_study(config, "p", create=True), n_trials=24).run(launcher)
    late = [value(job) for job in launcher.jobs[14:]]
    assert sum(late) / 10 > sum(map(value, launcher.jobs[:10])) / 10 + 0.5


@pytest.mark.parametrize("wrong", [None, math.nan])
def test_failed_trials_are_replaced(wrong: float | None, config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    search(study, n_trials=3).run(lambda jobs: [wrong if jobs[0][-1].endswith("=1") else 0.5])
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    launcher = Launcher()
    search(open_study(config, "p", create=True), n_trials=3).run(launcher)
    assert launcher.jobs == []


def test_a_search_ends_when_all_trials_fail_and_tries_again_when_resumed(config: SweepConfig) -> None:
    study = open_study(config, "p", create=True)
    search(study, n_trials=3, n_jobs=2).run(lambda jobs: [None] * len(jobs))
    assert states(study) == ["FAIL"] * 4  # in whole batches
    search(open_study(config, "p", create=True), n_trials=3).run(Launcher())
    assert states(study) == ["FAIL"] * 4 + ["COMPLETE"] * 3


def test_no_trial_stays_unfinished(config: SweepConfig) -> None:
    """Not after n_trials was reduced, and not without all of its values."""
    study = open_study(config, "p", create=True)
    study.ask().suggest_float("x", -2, 2)
    with pytest.raises(KeyboardInterrupt):
        search(study, n_trials=3, n_jobs=3).run(Launcher(1))
    assert states(study) == ["FAIL"] + ["RUNNING"] * 3
    search(open_study(config, "p", create=True), n_trials=1).run(Launcher())
    assert states(study) == ["FAIL", "COMPLETE", "FAIL", "FAIL"]


def test_mistakes_are_refused(config: SweepConfig) -> None:
    assert open_study(config.model_copy(update={"name": None}), "parent", create=True).study_name == "parent"
    search(open_study(config, "p", create=True))
    search(open_study(config, "p", create=True), space=dict(SPACE))
    with pytest.raises(ConfigError, match=r"^sweep\.name=s: .*\bx, z\b"):
        search(open_study(config, "p", create=True), space=SPACE | {"x": FloatDistribution(0, 1), "z": SPACE["x"]})
    with pytest.raises(ConfigError):
        search(open_study(config, "p", create=True), space={})
    with pytest.raises(ConfigError, match=r"^sweep\.storage=nonsense: "):
        open_study(config.model_copy(update={"storage": "nonsense"}), "p", create=True)
    settings = {"sampler": "tpe", "seed": 0, "n_trials": 6, "n_jobs": 1}
    for key, wrong in (("sampler", "grid"), ("n_trials", 0), ("n_jobs", 0), ("seed", -1)):
        with pytest.raises(ConfigError, match=rf"^hydra\.sweeper\.{key}={wrong}: "):
            parse(SearchSettings, {**settings, key: wrong}, prefix="hydra.sweeper")


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


def test_the_trial_of_a_process(settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is resumed may report an epoch again, of which Optuna warns."""
    config = settings(sweep__trial=0, sweep__name="s")
    assert current_trial(config.sweep) is None
    monkeypatch.setenv(PARENT_VARIABLE, "p")
    assert current_trial(settings().sweep) is None
    open_study(config.sweep, "p", create=True).ask(SPACE)
    for taus in ((0.25,), (0.5, 0.75)):
        trial = current_trial(config.sweep)
        assert trial is not None
        for step, tau in enumerate(taus, start=1):
            trial.report(tau, step)
    assert open_study(config.sweep, "p", create=False).trials[0].intermediate_values == {1: 0.25, 2: 0.75}
