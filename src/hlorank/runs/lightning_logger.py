"""Lightning's view of a run: the logger of a training's metrics, and the report of its validations to a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger

from hlorank.config import TrackingConfig
from hlorank.metrics import VALID_TAU
from hlorank.runs.search import report
from hlorank.runs.store import tracking_uri

if TYPE_CHECKING:
    import optuna


class RunLogger(MLFlowLogger):
    """Logger into the run of a training; metrics of an ensemble's member are logged under its name."""

    LOGGER_JOIN_CHAR = "/"

    def __init__(self, config: TrackingConfig, run_id: str, member: str) -> None:
        super().__init__(config.experiment, tracking_uri=tracking_uri(config), run_id=run_id, prefix=member)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics without Lightning's `epoch`, which repeats the step."""
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)


class TrialReport(Callback):
    """Report of each validation to the search that the training belongs to, which may prune it.

    Epochs of earlier members of an ensemble count before the first epoch of a member.
    """

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
