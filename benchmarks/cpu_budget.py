"""Bound of the CPU time of a training: methods are compared by what they reach in the same time."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from hlorank.config import Config


class CpuBudget(Callback):
    """Bound of the CPU time of this process from the first step on.

    The training ends after the step or the validation that uses it up; the learning rate falls along the cosine of the
    time where that is ahead of the steps.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._before, self._start = seconds, 0.0, 0.0

    @property
    def share(self) -> float:
        """The share of the budget that is spent."""
        return (self._before + time.process_time() - self._start) / self.seconds

    def add(self, seconds: float) -> None:
        """Add CPU time, or leave some out where it is below 0."""
        self._before += seconds

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._before, self._start = 0.0, time.process_time()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        """Stop between two steps of the optimizer, never between the graphs of one step; validation follows."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._stop_at_end(trainer)
            along_time = module.settings.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, self.share)))
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = min(group["lr"], along_time)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stop if the validation used up the budget."""
        self._stop_at_end(trainer)

    def _stop_at_end(self, trainer: lightning.Trainer) -> None:
        trainer.should_stop = trainer.should_stop or self.share >= 1


def train(config: Config, output: Path, cpu_seconds: float | None) -> float | None:
    """Train as the stage train, within a budget of CPU time, which members share equally."""
    from hlorank.runs.training import training
    from hlorank.training.fit import fit
    from hlorank.training.prepare import prepare
    from hlorank.training.process_group import process_group

    with process_group(config.trainer) as ranks:
        setup = prepare(config, ranks)
        with training(config, setup, output, ranks) as run:
            if run.tau is None:
                bound = [] if cpu_seconds is None else [CpuBudget(cpu_seconds / max(1, len(setup.members)))]
                run.save(fit(setup, ranks, run.folder, run.logger, [*run.callbacks, *bound]))
            return run.tau
