"""A search: asks a sampler what to try, hands it out in batches, and tells what came of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hlorank.config import ConfigError
from hlorank.sweeps.space import Space, as_overrides

if TYPE_CHECKING:
    import optuna
    from optuna.trial import TrialState

log = logging.getLogger(__name__)

SAMPLERS = ("tpe", "random")
_SPACE = "space"

Launch = Callable[[list[list[str]]], Sequence[Any]]
"""Runs jobs, each given by its overrides, and returns their values, None where one failed or was pruned."""


@dataclass
class Search:
    """A search for the largest value.

    The n-th trial is drawn from a generator of its own, seeded by the seed and n: a search that goes on after an
    interruption tries what it would have tried without.

    Attributes:
        study: where the trials are kept.
        sampler: tpe (tree-structured Parzen estimators, Bergstra et al., NeurIPS 2011) or random.
        seed: of the sampler.
        trials: how many have a result at the end, those of earlier processes among them; as many as that may fail
            meanwhile, and are replaced.
        batch: how many run side by side.
        fixed: overrides that all trials share.
        space: what is searched.

    Raises:
        ConfigError: there is no such sampler, a number is too small, nothing is searched, or the study is over another
            space.
    """

    study: optuna.Study
    sampler: str
    seed: int
    trials: int
    batch: int
    fixed: list[str]
    space: Space

    def __post_init__(self) -> None:
        for name, value, least in (("seed", self.seed, 0), ("n_trials", self.trials, 1), ("n_jobs", self.batch, 1)):
            if value < least:
                raise ConfigError(f"hydra.sweeper.{name}={value}: set it to at least {least}")
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"hydra.sweeper.sampler: expected one of {', '.join(SAMPLERS)}, found {self.sampler!r}")
        if not self.space:
            raise ConfigError("nothing to search: give a key a choice(), range() or interval()")
        self._check_space()

    def _check_space(self) -> None:
        from optuna.distributions import distribution_to_json

        space = {key: distribution_to_json(value) for key, value in self.space.items()}
        earlier = self.study.user_attrs.setdefault(_SPACE, space)
        if earlier != space:
            keys = sorted(key for key in {*space, *earlier} if space.get(key) != earlier.get(key))
            raise ConfigError(
                f"sweep.name={self.study.study_name}: an earlier search of this name has another space for "
                f"{', '.join(keys)}; choose another name"
            )
        self.study.set_user_attr(_SPACE, space)

    def run(self, launch: Launch) -> None:
        """Runs what an earlier process left unfinished, and then new trials, until there are as many as wanted."""
        from optuna.trial import TrialState

        results, failed = (TrialState.COMPLETE, TrialState.PRUNED), (TrialState.FAIL,)
        waiting = self._interrupted()
        if waiting:
            log.info("%d trials were interrupted and run again", len(waiting))
        most = self._count(failed) + self.trials
        while self._count(failed) < most and (count := min(self.batch, self.trials - self._count(results))) > 0:
            batch, waiting = waiting[:count], waiting[count:]
            batch += [self._ask() for _ in range(count - len(batch))]
            jobs = [[*self.fixed, *as_overrides(parameters), f"sweep.trial={number}"] for number, parameters in batch]
            for (number, _), value in zip(batch, launch(jobs), strict=True):
                self._tell(number, value)
        for number, _ in waiting:  # more than are wanted now
            self.study.tell(number, state=TrialState.FAIL)

    def _count(self, states: Sequence[TrialState]) -> int:
        return len(self.study.get_trials(deepcopy=False, states=tuple(states)))

    def _ask(self) -> tuple[int, dict[str, Any]]:
        import optuna

        number = len(self.study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self.study.sampler = samplers[self.sampler](seed=seed)
        trial = self.study.ask(self.space)
        return trial.number, trial.params

    def _interrupted(self) -> list[tuple[int, dict[str, Any]]]:
        """Trials that an earlier process did not finish; those that it had no time to give all values fail."""
        from optuna.trial import TrialState

        found = []
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            if set(trial.params) == set(self.space):
                found.append((trial.number, trial.params))
            else:
                self.study.tell(trial.number, state=TrialState.FAIL)
        return found

    def _tell(self, number: int, value: Any) -> None:
        from optuna.trial import TrialState

        trial = self.study.get_trials(deepcopy=False)[number]
        if trial.state is not TrialState.RUNNING:
            log.info("trial %d: %s", number, trial.state.name.lower())  # its own process has pruned it
        elif value is None or math.isnan(value):
            self.study.tell(number, state=TrialState.FAIL)
            log.info("trial %d: failed", number)
        else:
            self.study.tell(number, value)
            log.info(
                "trial %d: %.4f, best %.4f of trial %d",
                number,
                value,
                self.study.best_value,
                self.study.best_trial.number,
            )
