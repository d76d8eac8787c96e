"""Hyperparameter search: a space in Hydra's syntax, an Optuna study, and trials that run in batches."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from pydantic import Field

from hlorank.config import ConfigError, Section, SweepConfig
from hlorank.runs.store import PARENT_VARIABLE, Pruned, database_file, database_problem

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import TrialState

Space = dict[str, "BaseDistribution"]
Launch = Callable[[list[list[str]]], Sequence[Any]]
"""Runs jobs, each given by its overrides, and returns their values, None for a failed or pruned job."""

_PATIENCE_SECONDS = 120  # time limit for the lock of a sqlite file

log = logging.getLogger(__name__)


def split(overrides: Sequence[Override]) -> tuple[list[str], Space]:
    """Split parsed overrides into fixed values, as text, and the search space; the last override of a key counts."""
    last = {override.get_key_element(): override for override in overrides}
    fixed, space = list[str](), Space()
    for key, override in last.items():
        if override.is_sweep_override():
            space[key] = _distribution(key, override)
        else:
            fixed.append(f"{key}={override.get_value_element_as_str()}")
    return fixed, space


def _distribution(key: str, override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    if not isinstance(value, IntervalSweep | RangeSweep):
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    log_scale, step = "log" in value.tags, None
    if unknown := value.tags - {"log"}:
        raise ConfigError(f"{key}: expected no tag but log, found {', '.join(sorted(unknown))}")
    if isinstance(value, IntervalSweep):
        low, high = cast("tuple[Any, Any]", (value.start, value.end))
    else:
        values: list[Any] = sorted(value.range())
        if not values:
            raise ConfigError(f"{override.input_line}: the range is empty")
        low, high, step = values[0], values[-1], abs(value.step)
    try:
        if isinstance(low, int) and isinstance(high, int):  # as int(interval(1, 8)) makes them
            return IntDistribution(low, high, log=log_scale, step=int(step or 1))
        return FloatDistribution(low, high, log=log_scale, step=step)
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}") from None


def open_study(config: SweepConfig, parent: str, create: bool) -> optuna.Study:
    """Open the study of a search, which has the name of the sweep or else the id of its run; create a missing study."""
    import optuna
    from sqlalchemy import NullPool
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A server has a limit of connections: each is closed after use, not kept open by every training.
    settings: dict[str, Any] = {"poolclass": NullPool}
    try:
        if (file := database_file(config.storage)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            settings = {"connect_args": {"timeout": _PATIENCE_SECONDS}}
        storage = optuna.storages.RDBStorage(config.storage, engine_kwargs=settings)
    except (SQLAlchemyError, ImportError) as error:
        problem = database_problem(error, "sweep.storage")
        raise ConfigError(f"sweep.storage={config.storage}: {problem}") from None
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if config.prune:
        pruner = optuna.pruners.MedianPruner(config.prune_after_trials, config.prune_after_epochs)
    name = config.name or parent
    if create:
        optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
    return optuna.load_study(study_name=name, storage=storage, pruner=pruner)


def current_trial(config: SweepConfig) -> optuna.Trial | None:
    """Return the trial that this process trains; None outside of searches."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or config.trial is None:
        return None
    from optuna.trial import Trial

    study = open_study(config, parent, create=False)
    return Trial(study, study.trials[config.trial]._trial_id)  # Optuna's own way to open a trial of another process


def report(trial: optuna.Trial, tau: float, step: int, last: bool) -> None:
    """Report a validation, and raise `Pruned` if the best one of the trial is below the median of earlier trials."""
    from optuna.trial import TrialState

    # A training that is resumed may repeat its last step, of which Optuna warns.
    if step not in trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
        trial.report(tau, step)
    if not last and trial.should_prune():
        trial.study.tell(trial.number, state=TrialState.PRUNED)
        raise Pruned


class SearchSettings(Section):
    """Settings of a search: `hydra.sweeper` in conf/hparams_search/."""

    sampler: Literal["tpe", "random"]
    """tpe (tree-structured Parzen estimators, Bergstra et al., NeurIPS 2011) or random."""
    seed: int = Field(ge=0)
    """Seed of the sampler."""
    n_trials: int = Field(ge=1)
    """Trials with a result at the end, earlier processes included; as many failed trials are replaced."""
    n_jobs: int = Field(ge=1)
    """Trials that run at a time."""


class Search:
    """Search for the largest value; seed and n draw the n-th trial, so that a resumed search tries the same values."""

    def __init__(self, study: optuna.Study, settings: SearchSettings, fixed: list[str], space: Space) -> None:
        from optuna.distributions import distribution_to_json

        self.study, self.settings = study, settings
        self._fixed, self._space = fixed, space
        if not space:
            raise ConfigError("nothing to search: give a key a choice(), range() or interval()")
        written = {key: distribution_to_json(value) for key, value in space.items()}
        earlier = study.user_attrs.get("space", written)
        if keys := sorted(key for key in {*space, *earlier} if written.get(key) != earlier.get(key)):
            found = f"an earlier search of this name has another space for {', '.join(keys)}; choose another name"
            raise ConfigError(f"sweep.name={study.study_name}: {found}")
        study.set_user_attr("space", written)

    def run(self, launch: Launch) -> None:
        """Run interrupted trials, then new ones, until enough have a result."""
        from optuna.trial import TrialState

        failed, wanted = TrialState.FAIL, self.settings.n_trials
        interrupted = self._trials(TrialState.RUNNING)
        waiting = [trial for trial in interrupted if trial.params.keys() == self._space.keys()]
        for trial in interrupted:
            if trial not in waiting:  # it lacks values
                self.study.tell(trial.number, state=failed)
        if waiting:
            log.info("%d trials were interrupted and run again", len(waiting))
        max_failed = len(self._trials(failed)) + wanted
        while len(self._trials(failed)) < max_failed:
            missing = wanted - len(self._trials(TrialState.COMPLETE, TrialState.PRUNED))
            if (count := min(self.settings.n_jobs, missing)) <= 0:
                break
            batch, waiting = waiting[:count], waiting[count:]
            batch += [self._ask() for _ in range(count - len(batch))]
            values = [{**trial.params, "sweep.trial": trial.number} for trial in batch]
            jobs = [[*self._fixed, *(f"{key}={value}" for key, value in job.items())] for job in values]
            for trial, value in zip(batch, launch(jobs), strict=True):
                self._tell(trial.number, value)
        for trial in waiting:  # left over after `n_trials` was reduced
            self.study.tell(trial.number, state=failed)

    def _trials(self, *states: TrialState) -> list[Any]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _ask(self) -> Any:
        import optuna

        seed = int(np.random.SeedSequence([self.settings.seed, len(self._trials())]).generate_state(1)[0])
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self.study.sampler = samplers[self.settings.sampler](seed=seed)
        return self.study.ask(self._space)

    def _tell(self, number: int, value: Any) -> None:
        """Record the result of a trial, unless the process of its training has pruned it."""
        from optuna.trial import TrialState

        failed = value is None or math.isnan(value)
        state = TrialState.FAIL if failed else None
        trial = self.study.tell(number, None if failed else value, state, skip_if_finished=True)
        result = trial.state.name.lower()
        if trial.state is TrialState.COMPLETE:
            best = self.study.best_trial
            result = f"{trial.value:.4f}, best {best.value:.4f} of trial {best.number}"
        log.info("trial %d: %s", number, result)
