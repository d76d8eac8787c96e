"""Optuna study of a search, and its trial in the process of a training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError, SweepConfig
from hlorank.runs.store import PARENT_VARIABLE, Pruned, database_problem

if TYPE_CHECKING:
    import optuna

_SQLITE = "sqlite:///"
_PATIENCE_SECONDS = 120  # time limit for the lock of a sqlite file


def open_study(config: SweepConfig, parent: str, create: bool) -> optuna.Study:
    """Open the study of a search.

    Args:
        config: the sweep; its name is the name of the study.
        parent: run id of the sweep, the name of the study of a sweep without a name.
        create: create a missing study.

    Raises:
        ConfigError: `sweep.storage` is no database that can be opened.
    """
    import optuna
    from sqlalchemy import NullPool
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A server has a limit of connections: each is closed after use, not kept open by every training.
    settings: dict[str, Any] = {"poolclass": NullPool}
    if config.storage.startswith(_SQLITE):
        Path(config.storage.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        settings = {"connect_args": {"timeout": _PATIENCE_SECONDS}}
    try:
        storage = optuna.storages.RDBStorage(config.storage, engine_kwargs=settings)
    except (SQLAlchemyError, ImportError) as error:
        problem = database_problem(error, "sweep.storage")
        raise ConfigError(f"sweep.storage={config.storage}: {problem}") from None
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if config.prune:
        pruner = optuna.pruners.MedianPruner(config.prune_after_trials, config.prune_after_epochs)
    name, sampler = config.name or parent, optuna.samplers.RandomSampler()
    if create:
        return optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )
    return optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=pruner)


class SearchTrial:
    """Trial in the process of its training.

    Args:
        study: the study of the search.
        number: the trial's number in the study.
    """

    def __init__(self, study: optuna.Study, number: int) -> None:
        import optuna

        self._study = study
        self._number = number
        frozen = study.trials[number]
        self._reported = set(frozen.intermediate_values)
        self._trial = optuna.trial.Trial(study, frozen._trial_id)  # Optuna's own way to open a trial of another process

    def report(self, tau: float, step: int) -> None:
        """Report a validation, once for each step: a training that is resumed may repeat its last one."""
        if step not in self._reported:
            self._trial.report(tau, step)

    def raise_if_pruned(self) -> None:
        """Prune the trial if its best validation is below the median of earlier trials.

        Raises:
            Pruned: the training must end.
        """
        import optuna

        if self._trial.should_prune():
            self._study.tell(self._number, state=optuna.trial.TrialState.PRUNED)
            raise Pruned


def current_trial(config: SweepConfig) -> SearchTrial | None:
    """Return the trial that this process trains; None outside of searches."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or config.trial is None:
        return None
    return SearchTrial(open_study(config, parent, create=False), config.trial)
