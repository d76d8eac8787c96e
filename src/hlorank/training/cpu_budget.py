"""A bound of the CPU time of a training."""

from __future__ import annotations

import math
import time
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback


class CpuBudget(Callback):
    """Stops a training after the step, or the validation, that uses up its CPU time.

    Time is that of all threads of this process, from the first step on; what a checkpoint says was spent before counts
    too, so that a resumed training has no new budget.

    Args:
        seconds: the budget; None sets none.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self._before = 0.0
        self._start: float | None = None

    @property
    def share(self) -> float:
        """What is spent of the budget, from 0 to about 1; 0 where there is none."""
        return self._spent / self.seconds

    @property
    def _spent(self) -> float:
        return self._before if self._start is None else self._before + time.process_time() - self._start

    def state_dict(self) -> dict[str, Any]:
        """The seconds spent."""
        return {"spent": self._spent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self._before, self._start = state_dict["spent"], None

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Starts the clock; takes no step where the budget was used up before."""
        self._start = time.process_time()
        self._stop_at_end(trainer)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, _module: Any, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        """Stops between two steps of the optimizer, never between the graphs of one; validation follows."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._stop_at_end(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stops where the validation used up the budget."""
        self._stop_at_end(trainer)

    def _stop_at_end(self, trainer: lightning.Trainer) -> None:
        trainer.should_stop = trainer.should_stop or self.share >= 1
