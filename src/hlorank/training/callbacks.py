"""Lightning callbacks and logger of a training: history, early ends, averaged weights, checks of checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, RichProgressBar, WeightAveraging
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hlorank.config import TrackingConfig
from hlorank.files import DataError, write_atomic
from hlorank.metrics import TRAIN_LOSS, TRAIN_SECONDS, VALID_TAU
from hlorank.runs.search import SearchTrial
from hlorank.runs.store import tracking_uri
from hlorank.training.mlflow_run import peak_memory_bytes
from hlorank.training.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

SWA_START = 0.5  # share of a training


class MemberLogger(MLFlowLogger):
    """Logger into the run of a training; metrics of an ensemble's member are logged under its name.

    Args:
        config: the tracking store and its experiment.
        run_id: the run.
        member: the member's name; empty for a single model.
    """

    LOGGER_JOIN_CHAR = "/"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics without Lightning's `epoch`, which repeats the step."""
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def __init__(self, config: TrackingConfig, run_id: str, member: str) -> None:
        super().__init__(config.experiment, tracking_uri=tracking_uri(config), run_id=run_id, prefix=member)


class EpochHistory(Callback):
    """History of a training, one row for each epoch; checkpoints keep it, so that a resumed training has all rows.

    Attributes:
        rows: epoch, train_loss, valid_kendall_tau (None without validation graphs), step_seconds (sampling included).
        seconds: time of all epochs, validations included.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float | None]] = []
        self.seconds = 0.0
        self._start = 0.0
        self._seconds = 0.0
        self._graphs = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far, and their time."""
        return {"rows": list(self.rows), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history of a checkpoint."""
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]
        log.info("continues after epoch %d of an interrupted training", len(self.rows))

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the epoch's clock."""
        self._start, self._graphs = time.perf_counter(), 0

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the graph, and update the time of the steps, which excludes validation."""
        self._seconds = time.perf_counter() - self._start
        self._graphs += 1

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the epoch's row, and log its cost."""
        step_seconds = self._seconds / self._graphs * trainer.accumulate_grad_batches
        self.seconds += time.perf_counter() - self._start
        pl_module.log_dict(
            {
                TRAIN_SECONDS: self.seconds,
                "train/step_seconds": step_seconds,
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


class ProgressBar(RichProgressBar):
    """Progress bar with the last epoch's validation Kendall tau: a terminal of 80 columns has no room for more."""

    def get_metrics(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> dict[str, Any]:
        """Return Kendall tau, once it is known, by a short name."""
        tau = trainer.progress_bar_metrics.get(str(pl_module.tau_metric))
        return {} if tau is None else {"valid tau": tau}


class CheckpointIdentity(Callback):
    """Identity of the training that a checkpoint belongs to, so that no other training continues from it.

    Args:
        identity: plain values by name that together identify the training; an error names the first that differs.
    """

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.identity = identity

    def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the identity."""
        checkpoint["identity"] = dict(self.identity)

    def check(self, path: Path) -> None:
        """Check that a checkpoint belongs to this training; call it before any of its state is loaded.

        Raises:
            DataError: the checkpoint belongs to another training; the message has the first value that differs.
        """
        found = torch.load(path, weights_only=True, mmap=True).get("identity", {})
        for name, value in self.identity.items():
            if name not in found or found[name] != value:
                remedy = f"remove {path.parent} to train again from the start, or restore what it was made with"
                raise DataError(name, f"{value!r}, as in this training", f"{found.get(name)!r}; {remedy}", file=path)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writer of checkpoints that replaces earlier ones in one step, where Lightning copies them from /tmp."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:  # noqa: ARG002 - Lightning's signature
        """Write a checkpoint.

        Raises:
            OSError: the file cannot be written; the earlier one remains.
        """
        buffer = BytesIO()  # PyTorch turns errors of files into errors of its own
        torch.save(checkpoint, buffer)
        write_atomic(Path(path), lambda file: file.write(buffer.getbuffer()))


class TrialReport(Callback):
    """Report of each validation to the search that the training belongs to, which may prune it.

    Args:
        trial: the training's trial.
        before: epochs of earlier members of an ensemble, which count before the first epoch of this one.
    """

    def __init__(self, trial: SearchTrial, before: int) -> None:
        self._trial = trial
        self._before = before

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Report the epoch; after the last one the training is not pruned any more.

        Raises:
            Pruned: the search prunes the training.
        """
        if (tau := trainer.callback_metrics.get(VALID_TAU)) is None:
            return
        epoch = trainer.current_epoch + 1
        self._trial.report(float(tau), self._before + epoch)
        if epoch != trainer.max_epochs:
            self._trial.raise_if_pruned()


class Patience(EarlyStopping):
    """Early stopping that remains stopped when a training is resumed after its last epoch."""

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stop before the first step if the checkpoint is of a stopped training."""
        trainer.should_stop = trainer.should_stop or self.stopped_epoch > 0


class CpuBudget(Callback):
    """Bound of the CPU time of a training, which ends after the step or the validation that uses it up.

    CPU time is that of all threads of this process from the first step on, what worker processes `add`, and the same of
    all other ranks. Time that was spent before a checkpoint counts too, so that a resumed training does not get a new
    budget.

    Args:
        seconds: the budget; None for no bound.
        ranks: the ranks that train together.

    Attributes:
        ended: True if the budget has ended the training.
    """

    def __init__(self, seconds: float | None, ranks: Ranks = ALONE) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.ended = False
        self._ranks = ranks
        self._before = 0.0
        self._start: float | None = None
        self._agreed: float | None = None

    @property
    def share(self) -> float:
        """Share of the budget that is spent, from 0 to about 1; 0 without a bound."""
        return self._spent / self.seconds

    @property
    def _spent(self) -> float:
        """Seconds spent; by several ranks, what they have last added up, so that all take the same steps."""
        return self._own if self._agreed is None else self._agreed

    @property
    def _own(self) -> float:
        return self._before if self._start is None else self._before + time.process_time() - self._start

    def add(self, seconds: float) -> None:
        """Add CPU time of another process."""
        self._before += seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds spent."""
        return {"spent": self._spent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the time that a checkpoint's training had spent."""
        self._before, self._start = state_dict["spent"], None

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Start the clock; stop before the first step if the budget was used up before."""
        self._before /= self._ranks.count
        self._start = time.process_time()
        self._stop_at_end(trainer)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, _module: Any, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        """Stop between two steps of the optimizer, never between the graphs of one step; validation follows."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._stop_at_end(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stop if the validation used up the budget."""
        self._stop_at_end(trainer)

    def _stop_at_end(self, trainer: lightning.Trainer) -> None:
        if self._ranks.count > 1 and self.seconds < math.inf:
            self._agreed = self._ranks.broadcast(sum(self._ranks.gather(self._own)))
        if self.share >= 1 and not self.ended:
            self.ended = trainer.should_stop = True
            log.info("trainer.cpu_seconds=%g: used up after %d steps", self.seconds, trainer.global_step)


class StepAveraging(WeightAveraging):
    """Average of the weights over optimizer steps; validation, checkpoints and the result have the averaged weights.

    `ema` is the exponential moving average over all steps, from the weights after the first one; its decay is the
    share of the average that remains after a step. `swa` is the equal average over the second half of the training
    (Izmailov et al., UAI 2018, here of each step instead of each cycle); in the first half it is the current weights,
    where Lightning's callback alone would validate the initial ones.

    Args:
        kind: ema or swa.
        decay: the decay of ema.
        progress: returns the finished share of the training.
        device: the device of the model in training.
    """

    def __init__(self, kind: str, decay: float, progress: Callable[[], float], device: torch.device) -> None:
        # PyTorch's factories of averaging functions have no types.
        average = get_ema_multi_avg_fn(decay) if kind == "ema" else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        super().__init__(device=device, use_buffers=False, multi_avg_fn=average)
        self._start = SWA_START if kind == "swa" else 0.0
        self._progress = progress

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Update the average after each step."""
        del epoch_idx
        if step_idx is None:
            return False
        if self._progress() <= self._start:
            assert self._average_model is not None
            self._average_model.n_averaged.zero_()  # the current weights replace the average
        return True
