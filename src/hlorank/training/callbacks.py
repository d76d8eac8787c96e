"""What a training reports while it runs: the history of its epochs, their cost, and a line for each."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping

from hlorank.files import DataError
from hlorank.sweeps.trial import SearchTrial
from hlorank.tracking import TRAIN_SECONDS
from hlorank.training.ranking_module import TRAIN_LOSS, VALID_TAU
from hlorank.training.step_data import Step

log = logging.getLogger(__name__)


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far; on CUDA the largest allocation on the device."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class EpochHistory(Callback):
    """Keeps one row an epoch, in the checkpoint too, so that a resumed run has the whole history.

    Attributes:
        rows: epoch, train_loss, valid_kendall_tau (None without validation graphs), step_seconds (sampling included).
        seconds: what all epochs took, validations included.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float | None]] = []
        self.seconds = 0.0
        self._start = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._configurations = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, and what they took."""
        return {"rows": list(self.rows), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]

    def on_train_epoch_start(self, *_: Any) -> None:
        """Starts the epoch's clock."""
        self._start, self._steps, self._configurations = time.perf_counter(), 0, 0

    def on_train_batch_end(self, _trainer: Any, _module: Any, _outputs: Any, batch: Step, *_: Any) -> None:
        """Counts the step; validation comes after the last one and is not part of their time."""
        self._seconds = time.perf_counter() - self._start
        self._steps += 1
        self._configurations += len(batch.rows)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Adds the epoch's row, and logs its cost."""
        step_seconds = self._seconds / self._steps
        self.seconds += time.perf_counter() - self._start
        pl_module.log_dict(
            {
                TRAIN_SECONDS: self.seconds,
                "train/step_seconds": step_seconds,
                "train/configs_per_second": self._configurations / self._seconds,
                "train/peak_memory_bytes": float(peak_memory_bytes()),
            }
        )
        metrics = trainer.callback_metrics
        tau = metrics.get(VALID_TAU)
        row = {
            "epoch": trainer.current_epoch + 1,
            "train_loss": float(metrics[TRAIN_LOSS]),
            "valid_kendall_tau": None if tau is None else float(tau),
            "step_seconds": step_seconds,
        }
        self.rows.append(row)
        shown = "" if tau is None else f", validation Kendall tau {float(tau):.3f}"
        log.info("epoch %d of %d: loss %.4f%s", row["epoch"], trainer.max_epochs, row["train_loss"], shown)


class Origin(Callback):
    """Writes into each checkpoint which training it is of, so that no other goes on from it.

    Args:
        origin: what tells trainings apart, by name: plain values, the most telling first.
    """

    def __init__(self, origin: Mapping[str, Any]) -> None:
        self.origin = origin

    def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        """Adds the origin."""
        checkpoint["origin"] = dict(self.origin)

    def check(self, path: Path) -> None:
        """Makes sure that a checkpoint is of this training, before any of its state is taken over.

        Raises:
            DataError: it is of another one; names the first value that differs.
        """
        found = torch.load(path, weights_only=True, mmap=True).get("origin", {})
        for name, value in self.origin.items():
            if name not in found or found[name] != value:
                other = f"{found.get(name)!r}; remove {path.parent} to start anew, or restore what it was made with"
                raise DataError(name, f"{value!r}, as in this training", other, file=path)


class TrialReport(Callback):
    """Reports each validation to the search that the training belongs to, which may give it up.

    Args:
        trial: the training's trial.
        before: epochs that count before the first of this one: those of other members of an ensemble.
    """

    def __init__(self, trial: SearchTrial, before: int) -> None:
        self._trial = trial
        self._before = before

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Reports; what has had all of its epochs is not given up any more.

        Raises:
            Pruned: the search gives the training up.
        """
        if (tau := trainer.callback_metrics.get(VALID_TAU)) is None:
            return
        epoch = trainer.current_epoch + 1
        self._trial.report(float(tau), self._before + epoch)
        if epoch != trainer.max_epochs:
            self._trial.raise_if_pruned()


class Patience(EarlyStopping):
    """Early stopping that stays stopped where a training is resumed after its last epoch."""

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stops before the first step if the checkpoint says so."""
        trainer.should_stop = trainer.should_stop or self.stopped_epoch > 0
