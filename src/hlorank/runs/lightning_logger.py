"""Lightning's view of a run: the logger of a training's metrics, and the report of its validations to a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import Logger

from hlorank.metrics import VALID_TAU
from hlorank.runs.search import report

if TYPE_CHECKING:
    import optuna

    from hlorank.runs.training import Metrics


class RunLogger(Logger):
    """Logger into the run of a training; metrics of an ensemble's member are logged under its name."""

    name = version = None

    def __init__(self, metrics: Metrics, member: str) -> None:
        super().__init__()
        self._metrics, self._prefix = metrics, member and f"{member}/"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics without Lightning's `epoch`, which repeats the step."""
        named = {f"{self._prefix}{name}": value for name, value in metrics.items() if name != "epoch"}
        self._metrics.log(named, step or 0)

    def log_hyperparams(self, *_: Any) -> None:
        """Log nothing: the run has all parameters."""


class TrialReport(Callback):
    """Report of each validation to the search of a training, which may prune it; epochs of all members count."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self._before = 0

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Report the epoch, which may raise Pruned; after the last one the training is not pruned any more."""
        if (tau := trainer.callback_metrics.get(VALID_TAU)) is not None:
            epoch = trainer.current_epoch + 1
            report(self._trial, float(tau), self._before + epoch, last=epoch == trainer.max_epochs)

    def on_fit_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Count the epochs of the member."""
        self._before += trainer.max_epochs or 0
