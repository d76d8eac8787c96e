"""Hyperparameter search: an Optuna sampler proposes trials, which run in batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from hlorank.config import ConfigError
from hlorank.config.section import Section
from hlorank.runs.search_space import Space, as_overrides

if TYPE_CHECKING:
    import optuna
    from optuna.trial import TrialState

log = logging.getLogger(__name__)

_SPACE = "space"

Launch = Callable[[list[list[str]]], Sequence[Any]]
"""Runs jobs, each given by its overrides, and returns their values, None for a failed or pruned job."""


class SearchSettings(Section):
    """Settings of a search: `hydra.sweeper` in conf/hparams_search/."""

    sampler: Literal["tpe", "random"]
    """tpe (tree-structured Parzen estimators, Bergstra et al., NeurIPS 2011) or random."""
    seed: int = Field(ge=0)
    """Seed of the sampler."""
    n_trials: int = Field(ge=1)
    """Trials with a result at the end, those of earlier processes included; as many failed ones are replaced."""
    n_jobs: int = Field(ge=1)
    """Trials that run at a time."""


class Search:
    """Search for the largest value.

    The n-th trial is drawn from a generator of its own, seeded by the seed and n: a search that is resumed after an
    interruption tries the same values as one without.

    Args:
        study: storage of the trials.
        settings: sampler, seed and numbers of trials.
        fixed: overrides that all trials share.
        space: the search space.

    Raises:
        ConfigError: `space` is empty, or the study has trials of another space.
    """

    def __init__(self, study: optuna.Study, settings: SearchSettings, fixed: list[str], space: Space) -> None:
        self.study, self.settings = study, settings
        self._fixed, self._space = fixed, space
        if not space:
            raise ConfigError("nothing to search: give a key a choice(), range() or interval()")
        self._check_space()

    def _check_space(self) -> None:
        from optuna.distributions import distribution_to_json

        space = {key: distribution_to_json(value) for key, value in self._space.items()}
        earlier = self.study.user_attrs.setdefault(_SPACE, space)
        if earlier != space:
            keys = sorted(key for key in {*space, *earlier} if space.get(key) != earlier.get(key))
            raise ConfigError(
                f"sweep.name={self.study.study_name}: an earlier search of this name has another space for "
                f"{', '.join(keys)}; choose another name"
            )
        self.study.set_user_attr(_SPACE, space)

    def run(self, launch: Launch) -> None:
        """Run the trials that an earlier process left unfinished, then new ones, until enough have a result."""
        from optuna.trial import TrialState

        results, failed = (TrialState.COMPLETE, TrialState.PRUNED), (TrialState.FAIL,)
        wanted = self.settings.n_trials
        waiting = self._interrupted()
        if waiting:
            log.info("%d trials were interrupted and run again", len(waiting))
        max_failed = self._count(failed) + wanted
        while (
            self._count(failed) < max_failed and (count := min(self.settings.n_jobs, wanted - self._count(results))) > 0
        ):
            batch, waiting = waiting[:count], waiting[count:]
            batch += [self._ask() for _ in range(count - len(batch))]
            jobs = [[*self._fixed, *as_overrides(values), f"sweep.trial={number}"] for number, values in batch]
            for (number, _), value in zip(batch, launch(jobs), strict=True):
                self._tell(number, value)
        for number, _ in waiting:  # trials left over after `n_trials` was reduced
            self.study.tell(number, state=TrialState.FAIL)

    def _count(self, states: Sequence[TrialState]) -> int:
        return len(self.study.get_trials(deepcopy=False, states=tuple(states)))

    def _ask(self) -> tuple[int, dict[str, Any]]:
        import optuna

        number = len(self.study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self.settings.seed, number]).generate_state(1)[0])
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self.study.sampler = samplers[self.settings.sampler](seed=seed)
        trial = self.study.ask(self._space)
        return trial.number, trial.params

    def _interrupted(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the trials that an earlier process did not finish; those without all values are marked as failed."""
        from optuna.trial import TrialState

        found = []
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            if set(trial.params) == set(self._space):
                found.append((trial.number, trial.params))
            else:
                self.study.tell(trial.number, state=TrialState.FAIL)
        return found

    def _tell(self, number: int, value: Any) -> None:
        from optuna.trial import TrialState

        trial = self.study.get_trials(deepcopy=False)[number]
        if trial.state is not TrialState.RUNNING:
            log.info("trial %d: %s", number, trial.state.name.lower())  # pruned by the process of the training
        elif value is None or math.isnan(value):
            self.study.tell(number, state=TrialState.FAIL)
            log.info("trial %d: failed", number)
        else:
            self.study.tell(number, value)
            best = self.study.best_trial
            log.info("trial %d: %.4f, best %.4f of trial %d", number, value, best.value, best.number)
