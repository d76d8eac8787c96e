"""Searches: their spaces, and trials that are tried, resumed, replaced and refused."""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hlorank.config import ConfigError, SweepConfig
from hlorank.config.section import parse
from hlorank.runs.search import Search, SearchSettings, Space, open_study, split

SPACE: Space = {"x": FloatDistribution(-2, 2), "kind": CategoricalDistribution(["a", "b"])}
SETTINGS = {"sampler": "tpe", "seed": 0, "n_trials": 6, "n_jobs": 1}


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
        ("range(8, 0, -2)", IntDistribution(2, 8, step=2)),
        ("range(0.0, 1.0, 0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("a,b", CategoricalDistribution(["a", "b"])),
        ("choice([a, b], [c])", CategoricalDistribution(["[a,b]", "[c]"])),
        ("'x,y',z", CategoricalDistribution(["'x,y'", "z"])),
        ("range(4, 1)", None),
        ("tag(log, range(0.5, 2.0, 0.5))", None),
        ("tag(log, interval(0, 1))", None),
        ("interval(2, 1)", None),
        ("tag(lin, interval(0, 1))", None),
    ],
)
def test_each_form_of_a_space(written: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match=r"^key[=:]"):
            parsed(f"key={written}")
    else:
        overrides = [f"key={written}", "b=1,2", "b=7", "c='p q'", "d=[1,2]", "+e=1"]
        assert parsed(*overrides) == (["b=7", "c='p q'", "d=[1,2]", "+e=1"], {"key": expected})


@pytest.fixture
def open_named(tmp_path: Path) -> Callable[..., optuna.Study]:
    """Function that opens a study by its name."""
    fixed = SweepConfig(
        name="s",
        storage=f"sqlite:///{tmp_path}/new/searches.db",
        trial=None,
        prune=False,
        prune_after_trials=1,
        prune_after_epochs=1,
    )
    return lambda **changes: open_study(fixed.model_copy(update=changes), "parent", create=True)


def search(study: optuna.Study, space: Space = SPACE, **settings: Any) -> Search:
    return Search(study, SearchSettings.model_validate({**SETTINGS, **settings}), ["y=1"], space)


def value(job: list[str]) -> float:
    named = dict(override.split("=") for override in job)
    return -((float(named["x"]) - 0.5) ** 2) - (named["kind"] == "b")


def launcher(batches: list[list[list[str]]], dies: int = -1) -> Callable[[list[list[str]]], list[float]]:
    """Return a launcher that stores batches of jobs, and dies in the batch of a number."""

    def launch(jobs: list[list[str]]) -> list[float]:
        batches.append(jobs)
        if len(batches) == dies:
            raise KeyboardInterrupt
        return [value(job) for job in jobs]

    return launch


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_equal_seeds_try_equal_values(sampler: str, open_named: Callable[..., optuna.Study]) -> None:
    tried = []
    for name, seed, deaths in (("a", 0, ()), ("b", 0, (1,)), ("c", 0, (3, 2)), ("d", 1, ())):
        batches = list[list[list[str]]]()
        for dies in (*deaths, -1, -1):  # at last there is nothing left to do
            begun, study = list[list[list[str]]](), open_named(name=name)
            with suppress(KeyboardInterrupt):
                search(study, sampler=sampler, seed=seed, n_jobs=2, n_trials=5).run(launcher(begun, dies))
            batches += begun[: len(begun) - (len(begun) == dies)]
        assert [len(batch) for batch in batches] == [2, 2, 1]
        tried.append([job for batch in batches for job in batch])
        assert states(study) == ["COMPLETE"] * 5
        assert study.best_value == max(map(value, tried[-1]))
    assert tried[0] == tried[1] == tried[2] != tried[3]
    assert [(job[0], job[-1]) for job in tried[0]] == [("y=1", f"sweep.trial={number}") for number in range(5)]
    assert len({job[1] for job in tried[0]}) == 5


def test_tpe_prefers_large_values(open_named: Callable[..., optuna.Study]) -> None:
    batches = list[list[list[str]]]()
    search(open_named(), n_trials=24).run(launcher(batches))
    taus = [value(job) for (job,) in batches]
    assert sum(taus[14:]) > sum(taus[:10]) + 5, "the first 10 are random"


def test_failed_trials_are_replaced(open_named: Callable[..., optuna.Study]) -> None:
    """A search ends when all trials fail, in whole batches, and tries again when it is resumed."""
    wrong = {"sweep.trial=1": None, "sweep.trial=2": math.nan}
    search(study := open_named(name="a"), n_trials=3).run(lambda jobs: [wrong.get(jobs[0][-1], 0.5)])
    assert states(study) == ["COMPLETE", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    study = open_named()
    search(study, n_trials=3, n_jobs=2).run(lambda jobs: [None] * len(jobs))
    assert states(study) == ["FAIL"] * 4
    search(open_named(), n_trials=3).run(launcher([]))
    assert states(study) == ["FAIL"] * 4 + ["COMPLETE"] * 3


def test_no_trial_stays_unfinished(open_named: Callable[..., optuna.Study]) -> None:
    """Not after n_trials was reduced, and not without all of its values."""
    study = open_named()
    study.ask().suggest_float("x", -2, 2)
    with pytest.raises(KeyboardInterrupt):
        search(study, n_trials=3, n_jobs=3).run(launcher([], 1))
    assert states(study) == ["FAIL"] + ["RUNNING"] * 3
    search(open_named(), n_trials=1).run(launcher([]))
    assert states(study) == ["FAIL", "COMPLETE", "FAIL", "FAIL"]


def test_mistakes_are_refused(open_named: Callable[..., optuna.Study]) -> None:
    assert open_named(name=None).study_name == "parent"
    search(open_named())
    search(open_named(), space=dict(SPACE))
    other = SPACE | {"x": FloatDistribution(0, 1), "z": SPACE["x"]}
    for space, named in ((other, r"^sweep\.name=s: .*\bx, z\b"), (Space(), "nothing to search")):
        with pytest.raises(ConfigError, match=named):
            search(open_named(), space=space)
    with pytest.raises(ConfigError, match=r"^sweep\.storage=nonsense: "):
        open_named(storage="nonsense")
    for key, wrong in (("sampler", "grid"), ("n_trials", 0), ("n_jobs", 0), ("seed", -1)):
        with pytest.raises(ConfigError, match=rf"^hydra\.sweeper\.{key}={wrong}: "):
            parse(SearchSettings, {**SETTINGS, key: wrong}, prefix="hydra.sweeper")
